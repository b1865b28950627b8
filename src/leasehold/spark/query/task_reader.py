"""The executors' half of a query: read the slices of a task, several at a time, and give them away as Arrow.

Slices come out in the order of the plan, whichever is fetched first, so that every attempt yields the same rows in the
same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Final

import pyarrow as pa

from leasehold.archive.columns import record_batches, session_number
from leasehold.core.model import LeaseSessionId
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.pinned_slices import PinnedSlice, SlicePlan, pinned_slice
from leasehold.spark.query.task_resources import LoopThread, task_loop, task_ports

# Slices of one task that are fetched at a time; each is held in memory until it is pinned and given away.
SLICES_AT_A_TIME: Final = 16


def read_slices(plans: Sequence[SlicePlan], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a task. Whoever stops early stops the fetching too."""
    loop = task_loop()
    waiting = deque(plans)
    fetching: deque[Future[PinnedSlice | None]] = deque()
    try:
        while waiting or fetching:
            while waiting and len(fetching) < SLICES_AT_A_TIME:
                fetching.append(_fetch(loop, waiting.popleft(), options))
            done = fetching.popleft().result()
            if done is not None:
                yield from _rows(done, options)
    finally:
        for each in fetching:
            each.cancel()


def _fetch(loop: LoopThread, plan: SlicePlan, options: SourceOptions) -> Future[PinnedSlice | None]:
    async def fetch() -> PinnedSlice | None:
        return await pinned_slice(plan, await task_ports(options))

    return loop.submit(fetch())


def _rows(done: PinnedSlice, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    lease = done.plan.lease
    yield from record_batches(
        done.records,
        stream=options.stream,
        shard=lease.shard_id,
        columns=options.columns,
        session=session_number(lease.session or LeaseSessionId("")),
    )
