"""The contract of object stores, on memory, a folder, and S3."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from leasehold.adapters.aws.clients import AwsAccess
from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.adapters.obstore_objects import open_object_store
from leasehold.errors import ConfigError, ServiceError
from leasehold.ports import Created, Exists, ObjectStore, StoredObject
from tests.servers import Server


@pytest.fixture(params=["memory", "obstore_memory", "folder", "ministack"])
def store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    unique_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> ObjectStore:
    """An empty store of each kind."""
    match request.param:
        case "memory":
            return MemoryObjects()
        case "obstore_memory":
            return _open("memory://")
        case "folder":
            return _open(str(tmp_path / "objects"))
        case _:
            server: Server = request.getfixturevalue("ministack")
            bucket = unique_name("objects")
            server.client("s3").create_bucket(Bucket=bucket)
            monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            return _open(f"s3://{bucket}/below/here", endpoint_url=server.url)


def _open(url: str, endpoint_url: str | None = None) -> ObjectStore:
    return open_object_store(url, AwsAccess(endpoint_url=endpoint_url), setting="url", extra="archive")


async def _listed(store: ObjectStore, offset: str = "", prefix: str = "") -> list[StoredObject]:
    found = [each async for portion in store.list_after(offset, prefix=prefix) for each in portion]
    return sorted(found, key=lambda each: each.key)


def test_an_object_is_never_replaced(store: ObjectStore) -> None:
    """A second put of the same name returns Exists, and the first content stays."""

    async def scenario() -> None:
        assert await store.put_if_absent("a/b/1.parquet", b"first") == Created()
        assert await store.put_if_absent("a/b/1.parquet", b"second, longer") == Exists()
        assert await store.get("a/b/1.parquet") == b"first"
        assert await store.size("a/b/1.parquet") == 5

    asyncio.run(scenario())


def test_one_of_many_concurrent_puts_creates_the_object(store: ObjectStore) -> None:
    """`put_if_absent` is atomic."""

    async def scenario() -> None:
        bodies = [bytes([number]) * 100 for number in range(8)]
        outcomes = await asyncio.gather(*(store.put_if_absent("race", body) for body in bodies))
        (winner,) = [number for number, outcome in enumerate(outcomes) if outcome == Created()]
        assert await store.get("race") == bodies[winner]

    asyncio.run(scenario())


def test_a_large_object_is_created_only_if_absent(store: ObjectStore) -> None:
    """Large objects are not uploaded in parts, because a multipart upload would replace an existing object."""

    async def scenario() -> None:
        large = b"x" * (6 * 1024 * 1024)
        assert await store.put_if_absent("large", large) == Created()
        assert await store.put_if_absent("large", large + b"x") == Exists()
        assert await store.size("large") == len(large)

    asyncio.run(scenario())


def test_a_cancelled_put_leaves_the_whole_object_or_none(store: ObjectStore) -> None:
    """Nothing else is listed, and the object can be created again or exists."""

    async def scenario() -> None:
        body = bytes(range(256)) * 4_096
        keys = [f"a/{number}" for number in range(10)]
        for steps, key in enumerate(keys):
            put = asyncio.ensure_future(store.put_if_absent(key, body))
            for _ in range(steps):
                await asyncio.sleep(0)
            put.cancel()
            with suppress(asyncio.CancelledError):
                await put
            assert await store.get(key) in {None, body}
            assert await store.put_if_absent(key, body) in {Created(), Exists()}
            assert await store.get(key) == body
        assert {(each.key, each.size_bytes) for each in await _listed(store, prefix="a")} == {
            (key, len(body)) for key in keys
        }

    asyncio.run(scenario())


def test_a_deleted_object_is_gone(store: ObjectStore) -> None:
    """A second deletion does nothing, and the name can be used again."""

    async def scenario() -> None:
        await store.put_if_absent("a/1", b"one")
        await store.put_if_absent("a/2", b"two")
        await store.delete("a/1")
        await store.delete("a/1")
        await store.delete("b/c/nothing")
        assert [each.key for each in await _listed(store)] == ["a/2"]
        assert await store.put_if_absent("a/1", b"again") == Created()

    asyncio.run(scenario())


def test_a_missing_object_is_none(store: ObjectStore) -> None:
    """It is a return value, not an error."""

    async def scenario() -> None:
        assert await store.get("a/nothing") is None
        assert await store.size("a/nothing") is None
        assert await _listed(store) == []

    asyncio.run(scenario())


def test_a_listing_starts_after_the_offset_and_stays_below_the_prefix(store: ObjectStore) -> None:
    """Names come with their sizes; the prefix matches whole segments."""

    async def scenario() -> None:
        for key in ("x/2026/01", "x/2026/02", "x/2026/03/deep", "xy/2026/04", "w/2026/05"):
            await store.put_if_absent(key, key.encode())
        assert await _listed(store, "x/2026/01", "x") == [
            StoredObject("x/2026/02", 9),
            StoredObject("x/2026/03/deep", 14),
        ]
        assert [each.key for each in await _listed(store, "x/2026/02")] == ["x/2026/03/deep", "xy/2026/04"]
        assert len(await _listed(store)) == 5

    asyncio.run(scenario())


def test_a_listing_has_all_pages(store: ObjectStore) -> None:
    """All objects are listed once, also if they need several pages."""

    async def scenario() -> None:
        keys = [f"k/{number:04}" for number in range(1_050)]
        for first in range(0, len(keys), 50):
            await asyncio.gather(*(store.put_if_absent(key, b"") for key in keys[first : first + 50]))
        assert [each.key for each in await _listed(store)] == keys

    asyncio.run(scenario())


def test_a_missing_bucket_is_a_translated_error(ministack: Server) -> None:
    """The error names the operation and the location."""
    store = _open("s3://no-such-bucket-here/x", endpoint_url=ministack.url)
    with pytest.raises(ServiceError, match="put key in s3://no-such-bucket-here/x: "):
        asyncio.run(store.put_if_absent("key", b""))


def test_an_unknown_url_scheme_is_refused(tmp_path: Path) -> None:
    """The error names the setting and the value."""
    with pytest.raises(ConfigError, match="url='ftp://host/x'"):
        _open("ftp://host/x")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="url="):
        _open(str(tmp_path / "file" / "below"))
