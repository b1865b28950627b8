"""Reads one hour of an archive of 30 days with 100,000 made-up objects, and prints the number of requests.

    python benchmarks/archive_reading.py

The store makes up the content of an object when it is read, and counts requests as S3 does: 1,000 names a listing.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence

import pyarrow as pa

from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.adapters.system_clock import SystemClock
from leasehold.archive.columns import ALL_COLUMNS, arrow_schema, record_batches
from leasehold.archive.formats import encode
from leasehold.archive.reading import TimeSpan, list_objects, read_shard
from leasehold.archive.rows import to_archive_rows
from leasehold.archive.shard_rows import ArchiveStore
from leasehold.core.exactly_once.object_keys import ObjectKey, key_from_text, key_to_text
from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.model import ShardId
from leasehold.core.position import Position
from leasehold.core.record import UserRecord
from leasehold.ports import StoredObject

OBJECTS = 100_000
DAYS = 30
SHARDS = 4
ROWS = 100  # of an object
FIRST_MINUTE = 29_000_000
PAGE = 1_000


class MadeUpObjects(MemoryObjects):
    """A store with sorted names, whose objects are made when they are read."""

    def __init__(self) -> None:
        super().__init__()
        minutes = DAYS * 1_440
        keys = (_key(number, FIRST_MINUTE + number * minutes // OBJECTS) for number in range(OBJECTS))
        self.names = sorted(key_to_text(key) for key in keys)
        self.listings = self.gets = 0

    async def get(self, key: str) -> bytes | None:
        self.gets += 1
        return _body(key)

    async def list_after(self, offset: str, *, prefix: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        first, page = bisect_right(self.names, max(offset, prefix)), list[StoredObject]()
        for name in self.names[first:]:
            if not name.startswith(prefix):
                break
            page.append(StoredObject(name, 5_000))
            if len(page) == PAGE:
                self.listings += 1
                yield page
                page = []
        self.listings += 1
        yield page


def _key(number: int, minute: int) -> ObjectKey:
    shard = ShardId(f"shardId-{number % SHARDS:012}")
    first = 10**55 + number * ROWS
    return ObjectKey(minute, shard, Range(Position(str(first)), Position(str(first + ROWS - 1))), "parquet")


def _body(name: str) -> bytes:
    key = key_from_text(name)
    assert key is not None
    records = [
        UserRecord(b"x" * 100, "key", str(key.range.first.number + row), key.minute * 60_000 + row)
        for row in range(ROWS)
    ]
    batches = record_batches(records, stream="orders", shard=key.shard, columns=ALL_COLUMNS, session=1)
    rows = pa.Table.from_batches(batches, schema=arrow_schema(ALL_COLUMNS))
    return encode(to_archive_rows(rows), "parquet", "zstd")


async def read_hour(objects: MadeUpObjects) -> tuple[int, int]:
    """Read one hour in the middle of the archive. Return the numbers of objects and of rows."""
    store = ArchiveStore(objects, "", SystemClock(), random.Random(1))
    start = FIRST_MINUTE + DAYS * 720
    span = TimeSpan(start * 60_000, (start + 60) * 60_000)
    found, rows = await list_objects(store, span), 0
    for shard, keys in found.items():
        async for table in read_shard(store, shard, span, ["data"], objects=keys):
            rows += table.num_rows
    return sum(map(len, found.values())), rows


def main() -> None:
    """Print the requests of one hour."""
    objects = MadeUpObjects()
    began = time.perf_counter()
    opened, rows = asyncio.run(read_hour(objects))
    seconds = time.perf_counter() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{OBJECTS} objects of {DAYS} days; one hour has {opened} objects and {rows} rows")
    print(f"requests: {objects.listings} listings, {objects.gets} objects opened")
    print(f"{seconds:.1f} s (with the time to make up the objects), {memory} MB of memory at most")


if __name__ == "__main__":
    main()
