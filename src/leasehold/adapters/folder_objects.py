"""Objects as files in a folder: each is created whole or not at all, survives a power failure, and is never replaced.

A file is written and synced under a temporary name, and then linked to its own name; the link fails if the name exists.
The temporary files are in one folder below the root whose name begins with an underscore. So pyarrow, Spark and other
readers of the root ignore a file that a killed process left there, and writers find it there and delete it.

obstore's LocalStore is not used, because its temporary files (`<name>#1`) are beside the objects: readers fail at
them, and its own listings hide them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

from leasehold.errors import ServiceError, UnavailableError
from leasehold.ports import Created, Exists, ObjectStore, StoredObject

T = TypeVar("T")

STAGING_FOLDER: Final = "_leasehold_staging"
# A put takes seconds. If a process is suspended for longer before it links its file, the link fails, and it must retry.
STAGED_FILES_KEPT_S: Final = 3_600
_STAGED_NAME: Final = re.compile(r"[0-9a-f]{32}\.tmp")
_LIST_PAGE_SIZE: Final = 1_000
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_READABLE: Final = 0o666  # less the umask, as for any new file: others read the archive
_OWNER_ONLY: Final = 0o600
# What link() reports where it is not supported. EPERM: by some file systems, such as FAT.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class FolderObjects(ObjectStore):
    """The files below one folder, which must exist."""

    def __init__(self, root: Path, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._staging = root / STAGING_FOLDER
        self._now_s = now_s
        self._next_sweep_s = now_s()

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        """Create a file, unless one with that name exists."""
        return await self._call(
            "put", key, lambda: self._publish(self._path(key), self._stage(body, _READABLE), self._link)
        )

    async def put(self, key: str, body: bytes) -> None:
        """Create a file, or replace it as a whole. Only its owner may read it: a dead letter has a payload."""
        await self._call(
            "put", key, lambda: self._publish(self._path(key), self._stage(body, _OWNER_ONLY), Path.replace)
        )

    async def size(self, key: str) -> int | None:
        """The size of a file in bytes."""
        return await self._call("head", key, lambda: _size(self._path(key)))

    async def get(self, key: str) -> bytes | None:
        """The content of a file."""
        return await self._call("get", key, lambda: _content(self._path(key)))

    async def delete(self, key: str) -> None:
        """Delete a file. Its folders stay: a writer may be about to use them."""
        await self._call("delete", key, lambda: self._path(key).unlink(missing_ok=True))

    async def list_after(
        self, offset: str, *, prefix: str = ""
    ) -> AsyncGenerator[Sequence[StoredObject], None]:
        """All files page by page, including those that are no objects of an archive."""
        start = f"{prefix}/" if prefix else ""
        files = _files_below(self._path(prefix) if prefix else self._root, start, offset)
        while page := await self._call("list", offset, lambda: list(islice(files, _LIST_PAGE_SIZE))):
            yield page

    async def _call(self, operation: str, key: str, call: Callable[[], T]) -> T:
        what = f"{operation} {key} in {self._root}" if key else f"{operation} {self._root}"
        try:
            return await asyncio.to_thread(call)
        except PermissionError as error:
            raise ServiceError(f"{what}: {error.strerror}; check the permissions of this folder") from error
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise ServiceError(
                    f"{what}: the link {error.filename or key} leads back to itself or to a "
                    "folder above it; remove it"
                ) from error
            raise UnavailableError(
                f"{what}: {error.strerror or error}; check that the folder exists, and that "
                "its disk works and has space"
            ) from error

    def _path(self, key: str) -> Path:
        segments = key.split("/")
        if not all(segments) or {".", ".."} & {*segments} or "\0" in key:
            raise ValueError(f"{key!r} is not the name of an object")
        return self._root.joinpath(*segments)

    def _publish(self, path: Path, staged: Path, give_name: Callable[[Path, Path], T]) -> T:
        """Give a temporary file its own name."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            outcome = give_name(staged, path)
            # Also if the file exists: its writer may have been killed before it synced the folders.
            self._sync_folders_of(path)
        finally:
            staged.unlink(missing_ok=True)
        return outcome

    def _stage(self, body: bytes, permissions: int) -> Path:
        """Write and sync a temporary file. Deletes those that killed processes left, now and then."""
        self._staging.mkdir(exist_ok=True)
        staged = self._staging / f"{uuid4().hex}.tmp"
        try:
            with os.fdopen(os.open(staged, _CREATE, permissions), "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
                written_s = os.fstat(file.fileno()).st_mtime
        except BaseException:
            staged.unlink(missing_ok=True)
            raise
        if self._now_s() >= self._next_sweep_s:
            self._next_sweep_s = self._now_s() + STAGED_FILES_KEPT_S
            # Compared with a file of the same file system, because its clock may differ from ours.
            _delete_staged_files(self._staging, written_before_s=written_s - STAGED_FILES_KEPT_S)
        return staged

    def _link(self, staged: Path, path: Path) -> Created | Exists:
        try:
            os.link(staged, path)
        except FileExistsError:
            return Exists()
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise ServiceError(
                    f"put {path}: its folder is on another file system than {self._staging}; an archive must be on one"
                ) from error
            if error.errno in _NO_LINKS:
                raise ServiceError(
                    f"put {path}: {error.strerror}; the archive needs a file system with hard links, because it "
                    "creates files only if they are absent"
                ) from error
            raise
        return Created()

    def _sync_folders_of(self, path: Path) -> None:
        """Make the name durable, and the names of all folders above it, which may be new."""
        for folder in path.parents:
            _sync_folder(folder)
            if folder == self._root:
                return


def open_folder(folder: Path, *, make_folder: bool) -> FolderObjects:
    """The store in a folder. Creates the folder and its parents if `make_folder` is set. Raises OSError."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file, not a folder")
    if make_folder:
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for each in missing:
            _sync_folder(each.parent)
    if not folder.is_dir():
        raise NotADirectoryError(f"the folder {folder} does not exist")
    return FolderObjects(folder)


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _delete_staged_files(staging: Path, *, written_before_s: float) -> None:
    """Delete old temporary files. A file that cannot be deleted stays: readers ignore it."""
    with suppress(OSError), os.scandir(staging) as entries:
        for entry in entries:
            if _STAGED_NAME.fullmatch(entry.name) and entry.stat().st_mtime < written_before_s:
                with suppress(OSError):
                    Path(entry).unlink()


def _size(path: Path) -> int | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _content(path: Path) -> bytes | None:
    try:
        # Without waiting: a named pipe has no content, and perhaps no writer.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        with os.fdopen(file, "rb", closefd=False) as content:
            return content.read()
    finally:
        os.close(file)


def _files_below(
    folder: Path, start: str, offset: str, above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[StoredObject]:
    """The files of a folder, whose keys begin with `start`. Skips folders that are wholly before the offset.

    A link may lead to a folder elsewhere. If it leads to one of the folders `above`, the listing would not end.
    """
    try:
        status = folder.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda each: each.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        key = start + entry.name
        if entry.is_dir():
            below = f"{key}/"
            if below > offset or offset.startswith(below):
                yield from _files_below(Path(entry.path), below, offset, above | {identity})
        elif key > offset:
            try:
                found_file = entry.stat()
            except FileNotFoundError:
                continue  # deleted since it was found: a temporary file, or one that a compaction replaced
            if stat.S_ISREG(found_file.st_mode):
                yield StoredObject(key, found_file.st_size, int(found_file.st_mtime * 1000))
