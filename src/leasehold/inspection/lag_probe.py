"""Measures how far the checkpoints of shards are behind the tip.

For each shard it reads the record at the checkpoint and the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from leasehold.core.model import Lease
from leasehold.errors import NotFoundError, ThrottledError, UnavailableError
from leasehold.fleet.reading.checkpoint_probe import ShardLag, probe_checkpoint
from leasehold.ports import Clock, Stream
from leasehold.tasks import all_of

CONCURRENT_PROBES_MAX: Final = 16
ATTEMPTS_MAX: Final = 5
RETRY_S: Final = 0.4  # a worker uses most of the five reads a second; two of ours fit beside it


async def measure_lags(stream: Stream, leases: Sequence[Lease], clock: Clock) -> Sequence[ShardLag]:
    """Measure the shards of one stream concurrently. A failure is reported in the note of its shard.

    Raises NotFoundError if the stream has none of these shards, because then it is the wrong one.
    """
    semaphore = asyncio.Semaphore(CONCURRENT_PROBES_MAX)

    async def probe(lease: Lease) -> ShardLag | NotFoundError:
        async with semaphore:
            try:
                return await _probe(stream, lease, clock)
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


async def _probe(stream: Stream, lease: Lease, clock: Clock) -> ShardLag:
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return await probe_checkpoint(stream, lease, clock)
        except (ThrottledError, UnavailableError) as error:
            if attempt == ATTEMPTS_MAX:
                is_throttled = isinstance(error, ThrottledError)
                return ShardLag(
                    lease, None, str(error), is_throttled=is_throttled, is_unavailable=not is_throttled
                )
            await asyncio.sleep(RETRY_S)
    raise AssertionError("unreachable: the last attempt returns or raises")
