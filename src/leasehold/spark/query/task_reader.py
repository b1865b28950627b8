"""The executors' side of a streaming query: reads the slices of a task and yields them as Arrow batches.

Several slices are fetched concurrently. They are yielded in the order of the plan, so that every attempt yields the
same rows in the same order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa

from leasehold.archive.columns import record_batches, session_number
from leasehold.core.model import LeaseSessionId
from leasehold.loop_thread import LoopThread
from leasehold.spark.delivery_reports import RangeName
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.pinned_slices import PinnedSlice, SlicePlan, fetch_and_pin
from leasehold.spark.query.task_resources import task_loop, task_ports

# Slices of one task that are fetched concurrently. Each is in memory until it is pinned and yielded.
SLICES_AT_A_TIME: Final = 16

F = TypeVar("F", bound="Future[Any] | asyncio.Future[Any]")


class FetchWindow(Generic[F]):
    """Starts the fetches of a task in the order of its plans, some at a time, and returns them in this order."""

    def __init__(self, plans: Sequence[SlicePlan], fetch: Callable[[SlicePlan], F]) -> None:
        self._waiting = deque(plans)
        self._fetch = fetch
        self._fetching: deque[F] = deque()

    def next(self) -> F | None:
        """Return the next fetch, which may not have ended yet. None if there are no more."""
        while self._waiting and len(self._fetching) < SLICES_AT_A_TIME:
            self._fetching.append(self._fetch(self._waiting.popleft()))
        return self._fetching.popleft() if self._fetching else None

    def cancel(self) -> None:
        """Cancel the fetches that were not returned."""
        for each in self._fetching:
            each.cancel()


def read_slices(
    plans: Sequence[SlicePlan], options: SourceOptions, report: Callable[[Sequence[RangeName]], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, then report its ranges. Closing the iterator early cancels fetches and the report."""
    loop = task_loop()
    window = FetchWindow(plans, lambda plan: _fetch(loop, plan, options))
    delivered: list[RangeName] = []
    try:
        while (fetching := window.next()) is not None:
            pinned = fetching.result()
            if pinned is not None and pinned.records:
                yield from to_batches(pinned, options)
                delivered.append(_range_name(pinned, options))
        # Before the iterator ends: the sink reads the report when it has got the last row.
        report(delivered)
    finally:
        window.cancel()


def _fetch(loop: LoopThread, plan: SlicePlan, options: SourceOptions) -> Future[PinnedSlice | None]:
    async def fetch() -> PinnedSlice | None:
        return await fetch_and_pin(plan, await task_ports(options, plan.stream))

    return loop.submit(fetch())


def to_batches(pinned: PinnedSlice, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Convert a pinned slice to rows."""
    lease = pinned.plan.lease
    yield from record_batches(
        pinned.records,
        stream=pinned.plan.stream,
        shard=lease.shard_id,
        columns=options.columns,
        session=_session_of(pinned),
        names_stream=options.is_multi_stream,
    )


def _range_name(pinned: PinnedSlice, options: SourceOptions) -> RangeName:
    plan, first = pinned.plan, str(pinned.records[0].position)
    stream = plan.stream if options.is_multi_stream else ""
    return RangeName(stream, plan.lease.shard_id, _session_of(pinned), len(pinned.records), first)


def _session_of(pinned: PinnedSlice) -> int:
    return session_number(pinned.plan.lease.session or LeaseSessionId(""))
