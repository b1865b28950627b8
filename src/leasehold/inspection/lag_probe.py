"""Measures how far the checkpoints of shards are behind the tip.

For each shard it reads the record at the checkpoint. Kinesis returns how far this record is behind the tip. The read
counts as one of the five reads a second that a shard allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from leasehold.core.model import InitialPosition, Lease
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON
from leasehold.core.records.iterators import IteratorStart, gap_before, iterator_start
from leasehold.errors import NotFoundError, ThrottledError, UnavailableError
from leasehold.ports import Page, Stream
from leasehold.tasks import all_of

CONCURRENT_PROBES_MAX: Final = 16
ATTEMPTS_MAX: Final = 5
RETRY_S: Final = 0.4  # a worker uses most of the five reads a second; two of ours fit beside it
LOST: Final = "the shard has ended and has no retained records: unprocessed records are lost"
TRIMMED: Final = "the record at the checkpoint has been trimmed, and maybe others after it"


@dataclass(frozen=True, slots=True)
class ShardLag:
    """The lag of one shard. If it is unknown, `note` gives the reason."""

    lease: Lease
    millis_behind: int | None
    note: str = ""
    is_trimmed: bool = False
    is_throttled: bool = False
    is_unavailable: bool = False  # Kinesis did not respond, or failed


async def measure_lags(stream: Stream, leases: Sequence[Lease]) -> Sequence[ShardLag]:
    """Measure the shards of one stream concurrently. A failure is reported in the note of its shard.

    Raises NotFoundError if the stream has none of these shards, because then it is the wrong one.
    """
    semaphore = asyncio.Semaphore(CONCURRENT_PROBES_MAX)

    async def probe(lease: Lease) -> ShardLag | NotFoundError:
        async with semaphore:
            try:
                return await _probe(stream, lease)
            except NotFoundError as error:
                return error

    results = await all_of(*map(probe, leases))
    missing = [result for result in results if isinstance(result, NotFoundError)]
    if missing and len(missing) == len(results):
        raise missing[0]
    return [
        ShardLag(lease, None, "the stream has no such shard") if isinstance(result, NotFoundError) else result
        for lease, result in zip(leases, results, strict=True)
    ]


async def _probe(stream: Stream, lease: Lease) -> ShardLag:
    if lease.checkpoint == LATEST:
        return ShardLag(lease, 0, "not started; starts at the tip")
    if lease.checkpoint == AT_TIMESTAMP:
        return ShardLag(lease, None, "not started; starts at a time that only the workers know")
    start = iterator_start(lease.checkpoint, InitialPosition(TRIM_HORIZON))
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return await _read_one(stream, lease, start)
        except (ThrottledError, UnavailableError) as error:
            if attempt == ATTEMPTS_MAX:
                is_throttled = isinstance(error, ThrottledError)
                return ShardLag(
                    lease, None, str(error), is_throttled=is_throttled, is_unavailable=not is_throttled
                )
            await asyncio.sleep(RETRY_S)
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _read_one(stream: Stream, lease: Lease, start: IteratorStart) -> ShardLag:
    page = await stream.get_records(await stream.get_iterator(lease.shard_id, start), limit=1)
    return _judge(lease, page)


def _judge(lease: Lease, page: Page) -> ShardLag:
    records, lag = page.records, ShardLag(lease, page.millis_behind)
    if not records and page.next_iterator is None:
        return replace(lag, note=LOST, is_trimmed=True)
    if lease.checkpoint.is_sentinel:
        return replace(lag, note="not started")
    if records and gap_before(lease.checkpoint, records[0].sequence_number, None):
        return replace(lag, note=TRIMMED, is_trimmed=True)
    return lag
