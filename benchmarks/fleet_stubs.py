"""What simulated fleets without records share: a stream that is only a list of shards, and cheaper reading of rows."""

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
    """Rows that have not changed are taken apart once, for all members together; real ones do it each for itself."""
    parsed: dict[str, tuple[Row, Lease]] = {}
    original = lease_row.lease_from_row

    def lease_from_row(row: Row) -> Lease:
        key = row[lease_row.KEY]["S"]
        known = parsed.get(key)
        if known is None or known[0] is not row:
            known = parsed[key] = row, original(row)
        return known[1]

    lease_row.lease_from_row = lease_from_row
    try:
        yield
    finally:
        lease_row.lease_from_row = original


class ListedStream(Stream):
    """A stream of which members only need the list of shards."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards

    async def identifier(self) -> NoReturn:
        """A single stream needs none."""
        raise AssertionError("nobody asks for the identifier of a single stream")

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        """All of them; none has ended."""
        del shard_filter
        return self._shards

    async def iterator(self, shard: ShardId, start: IteratorStart) -> NoReturn:
        """Nobody reads here."""
        raise AssertionError(f"nobody reads {shard} from {start} here")

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        """Nobody reads here."""
        raise AssertionError(f"nobody reads {limit} records at {iterator} here")

    async def close(self) -> None:
        """Nothing is open."""


def even_shards(number: int) -> list[Shard]:
    """So many shards, which divide the hash keys evenly."""
    width = (HASH_KEY_MAX + 1) // number
    ends = [*(width * (index + 1) - 1 for index in range(number - 1)), HASH_KEY_MAX]
    return [
        Shard(shard_id(index), HashRange(width * index, end), str(index + 1))
        for index, end in enumerate(ends)
    ]
