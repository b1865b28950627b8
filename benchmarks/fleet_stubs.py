"""Stubs for simulated fleets without records: a stream that only lists shards, and a shared cache of parsed rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from leasehold.core.leases import lease_row
from leasehold.core.leases.row_writes import Row
from leasehold.core.model import HASH_KEY_MAX, HashRange, Lease, Shard, ShardId
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.kinesis_model.shard import shard_id
from leasehold.ports import Page, Stream


@contextmanager
def share_parsed_rows() -> Iterator[None]:
    """Parse each unchanged row once for all members. Real members parse every row themselves."""
    parsed: dict[str, tuple[Row, Lease]] = {}
    original = lease_row.lease_from_row

    def lease_from_row(row: Row) -> Lease:
        key = row[lease_row.KEY]["S"]
        cached = parsed.get(key)
        if cached is None or cached[0] is not row:
            cached = parsed[key] = row, original(row)
        return cached[1]

    lease_row.lease_from_row = lease_from_row
    try:
        yield
    finally:
        lease_row.lease_from_row = original


class ListedStream(Stream):
    """A stream that only lists its shards."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards

    async def get_identifier(self) -> NoReturn:
        """Not called for a single stream."""
        raise AssertionError("the identifier of a single stream is not needed")

    async def get_retention_ms(self) -> int:
        return 24 * 3_600_000

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        """Return all shards. None has ended."""
        del shard_filter
        return self._shards

    async def get_iterator(self, shard: ShardId, start: IteratorStart) -> NoReturn:
        """Not called: no records are read."""
        raise AssertionError(f"no records: iterator for {shard} from {start}")

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        """Not called: no records are read."""
        raise AssertionError(f"no records: {limit} records at {iterator}")

    async def close(self) -> None:
        """Do nothing."""


def even_shards(number: int) -> list[Shard]:
    """Return shards that divide the hash keys evenly."""
    width = (HASH_KEY_MAX + 1) // number
    ends = [*(width * (index + 1) - 1 for index in range(number - 1)), HASH_KEY_MAX]
    return [
        Shard(shard_id(index), HashRange(width * index, end), str(index + 1))
        for index, end in enumerate(ends)
    ]
