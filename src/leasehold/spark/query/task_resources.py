"""The loop, stream and lease table that the tasks of one Spark Python worker share.

A Python worker process runs task after task. Everything opened here stays open for the next task: one event loop on a
thread of its own, and one stream and one lease table for each set of options.
"""

from __future__ import annotations

import gc

from leasehold.adapters.logs import LogObserver
from leasehold.adapters.system_clock import SystemClock
from leasehold.config.connection import ConnectionSettings
from leasehold.config.settings import FanOutSettings
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.stream_consumer import StreamConsumer
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.loop_thread import LoopThread
from leasehold.ports import Stream
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.pinned_slices import ReaderPorts
from leasehold.wiring import new_rng, open_fan_outs, open_lease_table, open_stream

_loop: LoopThread | None = None
_streams: dict[tuple[str, ConnectionSettings], Stream] = {}
_tables: dict[tuple[str, ConnectionSettings], LeaseTable] = {}
_consumers: dict[tuple[str, str, ConnectionSettings, FanOutSettings], StreamConsumer] = {}


def task_loop() -> LoopThread:
    """Return the event loop of this process. The first call starts it and tunes the garbage collector."""
    global _loop  # noqa: PLW0603 - a process-wide resource, created once
    if _loop is None:
        _loop = LoopThread("leasehold-tasks")
        # Spark collects garbage after every task, but loaded modules never become garbage. Freezing them halves the
        # time of a small task.
        gc.collect()
        gc.freeze()
        # Records form no reference cycles. With the default threshold of 700 objects, the collector takes a third of a
        # reader's time.
        gc.set_threshold(50_000, 20, 100)
    return _loop


def task_stream(options: SourceOptions) -> Stream:
    """Return the stream of the options, opened once in this process."""
    key = (options.stream, options.connection)
    if key not in _streams:
        _streams[key] = open_stream(options.connection, options.stream)
    return _streams[key]


async def task_ports(options: SourceOptions) -> ReaderPorts:
    """Return the ports with which a task reads and pins its slices."""
    key, clock = (options.application, options.connection), SystemClock()
    if key not in _tables:
        _tables[key] = open_lease_table(options.connection, options.application)
    return ReaderPorts(
        stream=task_stream(options),
        table=_tables[key],
        clock=clock,
        rng=new_rng(),
        observe=LogObserver(clock.now_ms),
        budget=ByteBudget(options.read.buffer_bytes),
        read=options.read,
        deaggregation=options.deaggregation,
        fail_on_data_loss=options.fail_on_data_loss,
        consumer=_task_consumer(options),
    )


def open_consumer(options: SourceOptions) -> StreamConsumer:
    """Open the registered consumer with which a query subscribes."""
    clock = SystemClock()
    return StreamConsumer(
        open_fan_outs(options.connection, [options.stream], http2=options.fan_out.http2)[options.stream],
        options.fan_out,
        stream=options.stream,
        application=options.application,
        clock=clock,
        rng=new_rng(),
        observe=LogObserver(clock.now_ms),
    )


def _task_consumer(options: SourceOptions) -> StreamConsumer | None:
    """Return the registered consumer of the options, opened once in this process; None if the query polls."""
    if not options.fan_out.is_fan_out:
        return None
    key = (options.stream, options.application, options.connection, options.fan_out)
    if key not in _consumers:
        _consumers[key] = open_consumer(options)
    return _consumers[key]
