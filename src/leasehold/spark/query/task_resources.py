"""The loop, stream and lease table that the tasks of one Spark Python worker share.

A Python worker process runs task after task. Everything opened here stays open for the next task: one event loop on a
thread of its own, and one stream and one lease table for each set of options.
"""

from __future__ import annotations

from collections.abc import Mapping

from leasehold.adapters.logs import LogObserver
from leasehold.adapters.system_clock import SystemClock
from leasehold.archive.history import with_archive
from leasehold.config.connection import ConnectionSettings
from leasehold.config.settings import FanOutSettings
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.stream_consumer import StreamConsumer
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.garbage_collection import leave_out_loaded_objects, tune_garbage_collection
from leasehold.loop_thread import LoopThread
from leasehold.memory_allocation import keep_freed_memory
from leasehold.ports import Stream
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.pinned_slices import ReaderPorts
from leasehold.wiring import new_rng, open_fan_outs, open_lease_table, open_streams

_loop: LoopThread | None = None
_streams: dict[tuple[tuple[str, ...], ConnectionSettings], Mapping[str, Stream]] = {}
_tables: dict[tuple[str, ConnectionSettings], LeaseTable] = {}
_consumers: dict[tuple[str, str, ConnectionSettings, FanOutSettings], StreamConsumer] = {}


def task_loop() -> LoopThread:
    """Return the event loop of this process. The first call starts it and tunes garbage collector and allocator."""
    global _loop  # noqa: PLW0603 - a process-wide resource, created once
    if _loop is None:
        _loop = LoopThread("leasehold-tasks")
        # Spark collects garbage after every task. That loaded modules are left out halves the time of a small task.
        tune_garbage_collection()
        keep_freed_memory()
    return _loop


def open_source_streams(options: SourceOptions) -> dict[str, Stream]:
    """Open the streams of the options, by their names. They share one client."""
    opened = open_streams(options.connection, options.names)
    return {name: with_archive(stream, name, options.connection) for name, stream in opened.items()}


def task_stream(options: SourceOptions, name: str) -> Stream:
    """Return a stream of the options, opened once in this process."""
    key = (options.names, options.connection)
    if key not in _streams:
        _streams[key] = open_source_streams(options)
        # A client of boto3 has as many objects as all modules, and Spark would look at them after every task.
        leave_out_loaded_objects()
    return _streams[key][name]


async def task_ports(options: SourceOptions, stream: str) -> ReaderPorts:
    """Return the ports with which a task reads and pins its slices of a stream."""
    key, clock = (options.application, options.connection), SystemClock()
    if key not in _tables:
        _tables[key] = open_lease_table(options.connection, options.application)
    return ReaderPorts(
        stream=task_stream(options, stream),
        table=_tables[key],
        clock=clock,
        rng=new_rng(),
        observe=LogObserver(clock.now_ms),
        budget=ByteBudget(options.read.buffer_bytes),
        read=options.read,
        deaggregation=options.deaggregation,
        fail_on_data_loss=options.fail_on_data_loss,
        consumer=_task_consumer(options, stream),
    )


def open_consumer(options: SourceOptions, stream: str) -> StreamConsumer:
    """Open the registered consumer with which a query subscribes to a stream."""
    clock = SystemClock()
    return StreamConsumer(
        open_fan_outs(options.connection, [stream], http2=options.fan_out.http2)[stream],
        options.fan_out,
        stream=stream,
        application=options.application,
        clock=clock,
        rng=new_rng(),
        observe=LogObserver(clock.now_ms),
    )


def _task_consumer(options: SourceOptions, stream: str) -> StreamConsumer | None:
    """Return the registered consumer of a stream, opened once in this process; None if the query polls."""
    if not options.fan_out.is_fan_out:
        return None
    key = (stream, options.application, options.connection, options.fan_out)
    if key not in _consumers:
        _consumers[key] = open_consumer(options, stream)
    return _consumers[key]
