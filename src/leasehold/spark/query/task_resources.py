"""The wiring: which adapters stand behind the ports of a query, on the driver and in its tasks.

A Python worker of Spark's serves task after task. What is opened here stays open for the next one: one event loop in a
thread of its own, one stream and one lease table for each set of options.
"""

from __future__ import annotations

import asyncio
import gc
import random
import secrets
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from leasehold.adapters.aws import clients
from leasehold.adapters.aws.kinesis_stream import KinesisStream
from leasehold.adapters.logs import LogObserver
from leasehold.adapters.system_clock import SystemClock
from leasehold.config.connection import ConnectionSettings
from leasehold.fleet.reading.shard_reader import ByteBudget
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Stream
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.pinned_slices import ReaderPorts
from leasehold.wiring import aws_access, open_lease_table

T = TypeVar("T")


class LoopThread:
    """An event loop that runs in a thread of its own, for code that has none."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start work on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work on the loop, and wait for it. Whoever stops waiting stops the work."""
        future = self.submit(work)
        try:
            return future.result()
        finally:
            future.cancel()


def open_stream(options: SourceOptions) -> Stream:
    """The stream that the options name."""
    access = aws_access(options.connection, options.connection.kinesis_endpoint)
    return KinesisStream(clients.kinesis_client(access), options.stream)


def open_table(options: SourceOptions) -> LeaseTable:
    """The lease table that the options name."""
    return open_lease_table(options.connection, options.application)


def rng() -> random.Random:
    """Jitter and ids of holdings, nothing secret; but no two processes may draw alike."""
    return random.Random(secrets.randbits(128))  # noqa: S311


_loop: LoopThread | None = None
_streams: dict[tuple[str, ConnectionSettings], Stream] = {}
_tables: dict[tuple[str, ConnectionSettings], LeaseTable] = {}


def task_loop() -> LoopThread:
    """The loop of this worker process."""
    global _loop  # noqa: PLW0603 - a process-wide resource, made once
    if _loop is None:
        _loop = LoopThread("leasehold-tasks")
        # Spark collects garbage after every task, and what is loaded by now never becomes any: half of a small task's
        # time is saved.
        gc.collect()
        gc.freeze()
        # Records are many, and no cycles: to look for some after every 700 of them takes a third of a reader's time.
        gc.set_threshold(50_000, 20, 100)
    return _loop


def task_stream(options: SourceOptions) -> Stream:
    """The stream, as the tasks of this worker process read it."""
    key = (options.stream, options.connection)
    if key not in _streams:
        _streams[key] = open_stream(options)
    return _streams[key]


async def task_ports(options: SourceOptions) -> ReaderPorts:
    """What the tasks of this worker process read and pin with."""
    key, clock = (options.application, options.connection), SystemClock()
    if key not in _tables:
        _tables[key] = open_table(options)
    return ReaderPorts(
        stream=task_stream(options),
        table=_tables[key],
        clock=clock,
        rng=rng(),
        observe=LogObserver(clock.now_ms),
        budget=ByteBudget(options.read.buffer_bytes),
        read=options.read,
        deaggregation=options.deaggregation,
        fail_on_data_loss=options.fail_on_data_loss,
    )
