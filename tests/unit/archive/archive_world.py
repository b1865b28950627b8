"""Helpers for tests of the archive: ranges to write, and the contents of a store."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from leasehold.adapters.memory.faults import FaultyObjects, ObjectFault, StoreFault
from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.archive import Archive, ArchiveSettings, WriteReport
from leasehold.archive.columns import ARCHIVE_COLUMNS, arrow_schema, record_batches
from leasehold.archive.formats import decode_identity
from leasehold.archive.rows import PinnedRange
from leasehold.core.exactly_once.object_keys import ObjectKey, key_from_text
from leasehold.core.model import ShardId
from leasehold.core.record import UserRecord
from leasehold.ports import Clock, ObjectStore

T = TypeVar("T")
A, B = ShardId("shardId-000000000001"), ShardId("shardId-000000000002")
MINUTE_MS = 60_000


class NoWaiting(Clock):
    """A clock whose sleeps end at once."""

    def now_ms(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 0

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(0)


async def _call_directly(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def archive_on(store: ObjectStore, **settings: Any) -> Archive:
    """Open an archive on a store, as a new process would."""
    chosen = ArchiveSettings(**{"url": "memory://", **settings})
    return Archive(store, chosen, clock=NoWaiting(), rng=random.Random(1), in_thread=_call_directly)


def records(numbers: Iterable[int], minute: Callable[[int], int] = lambda _: 10) -> list[UserRecord]:
    """Make a record for each sequence number. `minute` returns its arrival minute."""
    return [
        UserRecord(b"data %d" % number, f"key-{number}", str(number), minute(number) * MINUTE_MS + number)
        for number in numbers
    ]


def table(of: Sequence[UserRecord], *, stream: str = "orders", shard: ShardId = A) -> Any:
    """The rows of one pinned range."""
    batches = record_batches(of, stream=stream, shard=shard, columns=ARCHIVE_COLUMNS, session=1)
    return pa.Table.from_batches(batches, schema=arrow_schema(ARCHIVE_COLUMNS))


def keys_in(store: MemoryObjects, prefix: str = "") -> list[ObjectKey]:
    """The keys of the archive's objects, in order."""
    keys = [key_from_text(name, prefix) for name in sorted(store.objects)]
    return [key for key in keys if key is not None]


def spans_in(store: MemoryObjects) -> list[tuple[int, int, int]]:
    """Minute, first and last number of each object."""
    return [(key.minute, key.range.first.number, key.range.last.number) for key in keys_in(store)]


def numbers_in(store: MemoryObjects, prefix: str = "") -> list[int]:
    """The sequence numbers of all archived records, with duplicates."""
    found: list[int] = []
    for name, body in store.objects.items():
        key = key_from_text(name, prefix)
        if key is not None:
            found += map(int, decode_identity(body, key.extension)["sequenceNumber"].to_pylist())
    return sorted(found)


def with_faults(
    store: ObjectStore, faults: Mapping[str, Sequence[StoreFault | ObjectFault | None]]
) -> FaultyObjects:
    """Wrap a store so that each operation fails with the given faults, one after the other, and then succeeds."""
    left = {operation: iter(each) for operation, each in faults.items()}
    return FaultyObjects(store, lambda operation, _: next(left.get(operation, iter(())), None))


async def write_with_outdated_listing(
    store: MemoryObjects, shard: ShardId, lease_session: str, rows: Any
) -> WriteReport:
    """Write a range with an archive that listed the store while it was empty."""
    archive = archive_on(store)
    objects, store.objects = store.objects, {}
    await archive.write([PinnedRange(shard, lease_session, rows)])
    store.objects = objects
    return await archive.write([PinnedRange(shard, lease_session, rows)])


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
