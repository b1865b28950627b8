"""A folder as an object store: what a killed writer leaves, and who deletes it."""

import asyncio
import errno
import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from leasehold.adapters.aws.clients import AwsAccess
from leasehold.adapters.folder_objects import STAGED_FILES_KEPT_S, STAGING_FOLDER, FolderObjects
from leasehold.adapters.obstore_objects import open_object_store
from leasehold.errors import ConfigError, ServiceError, UnavailableError
from leasehold.ports import Created, Exists, ObjectStore

LEFT = "0123456789abcdef" * 2 + ".tmp"


def stage(root: Path, name: str, age_s: float) -> Path:
    """Leave a file in the staging folder, as a killed writer does."""
    file = root / STAGING_FOLDER / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"PAR1 half of a file")
    os.utime(file, times=(time.time() - age_s,) * 2)
    return file


def put(store: ObjectStore, key: str, body: bytes = b"body") -> Created | Exists:
    return asyncio.run(store.put_if_absent(key, body))


def staged_files(root: Path) -> list[str]:
    return sorted(file.name for file in (root / STAGING_FOLDER).iterdir())


def test_a_put_leaves_only_the_object(tmp_path: Path) -> None:
    """The temporary file is deleted, whether the object was created or existed."""
    store = FolderObjects(tmp_path)
    assert put(store, "a/b/1") == Created()
    assert put(store, "a/b/1", b"other") == Exists()
    assert staged_files(tmp_path) == []
    assert (tmp_path / "a/b/1").read_bytes() == b"body"
    assert (tmp_path / "a/b/1").stat().st_nlink == 1


def test_a_put_that_may_replace_replaces_the_whole_file(tmp_path: Path) -> None:
    """Dead letters use it. The temporary file becomes the object."""
    store = FolderObjects(tmp_path)
    for body in (b"a long first content", b"short"):
        asyncio.run(store.put("a/letter", body))
        assert (tmp_path / "a/letter").read_bytes() == body
    assert staged_files(tmp_path) == []


def test_the_file_has_the_permissions_of_other_new_files(tmp_path: Path) -> None:
    """Temporary files are often private to their user; the archive must be readable for others."""
    put(FolderObjects(tmp_path), "object")
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "object").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_dead_letter_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """It has a payload. Its permissions are set when the file is created, so nobody can open it before."""
    asyncio.run(FolderObjects(tmp_path).put("letter", b"payload"))
    assert (tmp_path / "letter").stat().st_mode & 0o777 == 0o600


def test_readers_ignore_an_unfinished_file(tmp_path: Path) -> None:
    """pyarrow.dataset reads the objects, and neither fails at a staged file nor reads it."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1, 2]}), sink)
    put(FolderObjects(tmp_path), "2026/11/1.parquet", bytes(sink.getvalue()))
    stage(tmp_path, LEFT, age_s=0)
    assert ds.dataset(tmp_path, format="parquet").to_table()["n"].to_pylist() == [1, 2]


def test_old_staged_files_are_deleted_and_others_stay(tmp_path: Path) -> None:
    """A younger file may belong to a live writer. A file with another name is not ours."""
    old = STAGED_FILES_KEPT_S + 60
    stage(tmp_path, LEFT, old)
    live = stage(tmp_path, "f" * 32 + ".tmp", STAGED_FILES_KEPT_S - 60)
    foreign = [stage(tmp_path, name, old) for name in ("notes.txt", "f" * 31 + ".tmp", LEFT + "~")]
    beside = tmp_path / LEFT  # outside the staging folder
    beside.write_bytes(b"")
    os.utime(beside, times=(0, 0))
    put(FolderObjects(tmp_path), "object")
    assert staged_files(tmp_path) == sorted([live.name, *(each.name for each in foreign)])
    assert beside.exists()


def test_staged_files_are_deleted_now_and_then(tmp_path: Path) -> None:
    """A process that runs for long also deletes what others leave later, but does not list the folder at each put."""
    now_s = 100.0
    store = FolderObjects(tmp_path, now_s=lambda: now_s)
    left: list[bool] = []
    for now_s in (100.0, 101.0, 100.0 + STAGED_FILES_KEPT_S, 101.0 + STAGED_FILES_KEPT_S):
        file = stage(tmp_path, LEFT, 2 * STAGED_FILES_KEPT_S)
        put(store, f"object-{now_s}")
        left.append(file.exists())
    assert left == [False, True, False, True]


def test_a_put_is_on_the_disk_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is synced before it gets its name; then the folders are synced that hold the name, up to the root."""
    file, synced = tmp_path / "a/b/object", list[tuple[int, bool]]()
    sync = os.fsync

    def record_and_sync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, file.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record_and_sync)
    store = FolderObjects(tmp_path)
    assert put(store, "a/b/object") == Created()
    names = [(folder.stat().st_ino, True) for folder in (file.parent, file.parent.parent, tmp_path)]
    assert synced == [(file.stat().st_ino, False), *names]
    # Another process may have been killed after it created the object and before it synced the folders.
    synced.clear()
    assert put(store, "a/b/object") == Exists()
    assert synced[1:] == names


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full. The error can be retried."""

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(
        UnavailableError, match=f"^put a/object in {tmp_path}: No space left on device; check that"
    ):
        put(FolderObjects(tmp_path), "a/object")
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The error names the cause, and is not retried without end."""

    def fail(*_: object) -> None:
        raise OSError(code, "Operation not supported")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(ServiceError, match="needs a file system with hard links") as caught:
        put(FolderObjects(tmp_path), "object")
    assert not isinstance(caught.value, UnavailableError)


def test_a_listing_reads_only_folders_after_the_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders of past minutes are not read: an archive has half a million of them in a year."""
    store = FolderObjects(tmp_path)
    for key in ("2025/12/x", "2026/01/x", "2026/02/x", "2026/02.txt", "2026/03/x", "2027/01/x"):
        put(store, key)
    scan, scanned = os.scandir, list[str]()

    def record_and_scan(folder: Path) -> object:
        scanned.append(os.path.relpath(folder, tmp_path))
        return scan(folder)

    async def listed() -> list[str]:
        return [each.key async for page in store.list_after("2026/02") for each in page]

    with monkeypatch.context() as patches:
        patches.setattr(os, "scandir", record_and_scan)
        found = asyncio.run(listed())
    assert sorted(found) == ["2026/02.txt", "2026/02/x", "2026/03/x", "2027/01/x"]
    folders = [".", "2026", "2026/02", "2026/03", "2027", "2027/01", STAGING_FOLDER]
    assert sorted(scanned) == folders


def test_a_staged_file_that_was_deleted_too_early_is_a_retry(tmp_path: Path) -> None:
    """A writer that was suspended for hours before the link creates nothing, and its next attempt succeeds."""

    class Suspended(FolderObjects):
        """Another writer deletes the staged file before the link."""

        def _link(self, staged: Path, path: Path) -> Created | Exists:
            staged.unlink()
            return super()._link(staged, path)

    with pytest.raises(UnavailableError, match="put a/object in"):
        put(Suspended(tmp_path), "a/object")
    assert not (tmp_path / "a/object").exists()
    assert put(FolderObjects(tmp_path), "a/object") == Created()


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/etc/x", "a//b", "", ".", "a/./b", "a\0b"])
def test_a_key_cannot_lead_out_of_the_folder(tmp_path: Path, key: str) -> None:
    """Such a key is a programming error: the archive's own names cannot have this form."""
    store = FolderObjects(tmp_path / "root")
    for call in (store.put_if_absent(key, b""), store.get(key), store.size(key)):
        with pytest.raises(ValueError, match="is not the name of an object"):
            asyncio.run(call)
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_way_of_a_folder_is_not_an_existing_object(tmp_path: Path) -> None:
    """Only the object's own name counts as existing."""
    (tmp_path / "a").write_bytes(b"")
    store = FolderObjects(tmp_path)
    with pytest.raises(UnavailableError, match="put a/b/object in"):
        put(store, "a/b/object")
    assert asyncio.run(store.get("a/b/object")) is None
    assert asyncio.run(store.size("a/b/object")) is None


def test_a_folder_on_another_file_system_is_refused(tmp_path: Path) -> None:
    """A link cannot cross file systems. The error says so instead of a retry without end."""
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has no second file system to write to")
    target = other / f"leasehold-test-{os.getpid()}"
    target.mkdir()
    try:
        (tmp_path / "2026").symlink_to(target)
        with pytest.raises(ServiceError, match="on another file system"):
            put(FolderObjects(tmp_path), "2026/object")
        assert staged_files(tmp_path) == []
    finally:
        target.rmdir()


def test_the_folder_is_named_by_a_path_or_a_file_url(tmp_path: Path) -> None:
    """Both are the same store. A file URL of another machine is refused."""
    folder = tmp_path / "my archive"
    for url in (str(folder), f"file://{tmp_path}/my%20archive", f"file://localhost{tmp_path}/my%20archive"):
        put(open_object_store(url, AwsAccess(), setting="url", extra="archive"), f"{len(url)}")
    assert len([file for file in folder.iterdir() if file.is_file()]) == 3
    with pytest.raises(ConfigError, match="url='file://host/x': expected file:///folder"):
        open_object_store("file://host/x", AwsAccess(), setting="url", extra="archive")


def keys_in(store: ObjectStore) -> list[str]:
    async def list_all() -> list[str]:
        return [each.key async for page in store.list_after("") for each in page]

    return asyncio.run(list_all())


@pytest.mark.parametrize("target", ["2026", "2026/link", "."])
def test_a_link_that_leads_in_a_circle_is_named(tmp_path: Path, target: str) -> None:
    """The listing would come to the same files again and again. The error is no reason to try again."""
    store = FolderObjects(tmp_path)
    put(store, "2026/1")
    (tmp_path / "2026/link").symlink_to(tmp_path / target)
    with pytest.raises(
        ServiceError, match="2026/link leads back to itself or to a folder above it; remove it"
    ):
        keys_in(store)


def test_links_to_folders_elsewhere_are_followed(tmp_path: Path) -> None:
    """Two may lead to the same folder. A link to nothing is no object."""
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "root"
    root.mkdir()
    elsewhere.mkdir()
    put(FolderObjects(elsewhere), "1")
    for name in ("a", "b"):
        (root / name).symlink_to(elsewhere)
    (root / "c").symlink_to(tmp_path / "nothing")
    keys = [key for key in keys_in(FolderObjects(root)) if STAGING_FOLDER not in key]
    assert keys == ["a/1", "b/1"]


def test_a_named_pipe_is_no_object(tmp_path: Path) -> None:
    """It has no content, and reading it would wait for a writer without end."""
    os.mkfifo(tmp_path / "pipe")
    store = FolderObjects(tmp_path)
    assert keys_in(store) == []
    assert asyncio.run(store.get("pipe")) is None
    assert asyncio.run(store.size("pipe")) is None
