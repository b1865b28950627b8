"""Runs a worker: a member of the fleet that serves shards with user code until it is asked to stop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from leasehold.config.settings import milliseconds
from leasehold.core.events import Observer, OperationFailed, WorkerFailed
from leasehold.core.initial_position import require_past
from leasehold.core.model import WorkerId
from leasehold.core.observing.health import HealthLimits
from leasehold.fleet.finding_watch import FindingWatch
from leasehold.fleet.member import Member, MemberPorts
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.stream_consumer import StreamConsumers
from leasehold.fleet.stream_discovery import StreamDiscovery
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Clock, FanOut, LoadMeter, Stream, StreamDirectory
from leasehold.tasks import cancel_and_wait, first_of, wait_for
from leasehold.worker.dead_letters import DeadLetters
from leasehold.worker.delivery.served_shard import WorkerContext
from leasehold.worker.delivery.shard_consumer import HandlerKind
from leasehold.worker.engine.shard_server import ShardServer
from leasehold.worker.settings import HANDLERS_SHARE_OF_GRACE, ConsumerSettings
from leasehold.worker.stream_lists import find_by_function, find_listed
from leasehold.worker.user_code.handler_runners import HandlerRunners


@dataclass(frozen=True, slots=True)
class WorkerPorts:
    """The ports through which a worker reaches AWS, files, the clock and its observers."""

    worker: WorkerId
    table: LeaseTable
    streams: Mapping[str, Stream]  # by the names in the settings
    dead_letters: DeadLetters | None
    clock: Clock
    rng: random.Random
    observe: Observer
    load: LoadMeter | None = None  # measures how busy this process is; None: nothing is measured
    directory: StreamDirectory | None = None  # for a consumer that discovers its streams
    open_fan_out: Callable[[str], FanOut] | None = (
        None  # by the name of a stream; the caller closes what it opens
    )


async def run_worker(
    settings: ConsumerSettings,
    handler: HandlerKind,
    ports: WorkerPorts,
    runners: HandlerRunners,
    stop: asyncio.Event,
) -> BaseException | None:
    """Serve shards until `stop` is set, then drain them and release all leases.

    Returns the error that made the worker stop by itself, if there was one. Raises if the worker cannot start.
    """
    reasons: list[BaseException] = []

    def stop_worker(reason: BaseException) -> None:
        reasons.append(reason)
        ports.observe(WorkerFailed(type(reason).__name__))
        stop.set()

    identity, abandon = settings.identity, asyncio.Event()
    for initial in identity.initial_positions.values():
        require_past(initial.timestamp_ms, ports.clock.wall_ms())
    streams = Streams(
        [TrackedStream(name, ports.streams[name], at) for name, at in identity.initial_positions.items()],
        is_multi_stream=identity.is_multi_stream,
    )
    watch = _make_watch(settings, ports, streams)
    ports = replace(ports, observe=watch.then(ports.observe))
    discovery = _make_discovery(settings, ports, streams, runners)
    consumers = _make_consumers(settings, ports)
    if consumers is not None:
        await consumers.prepare(identity.initial_positions)
    server = ShardServer(
        handler=handler,
        context=_make_context(settings, ports, stop_worker),
        runners=runners,
        streams=streams,
        read=settings.read,
        deaggregation=settings.deaggregation,
        consumers=consumers,
        budget=ByteBudget(settings.read.buffer_bytes),
        abandon=abandon,
    )
    member = _make_member(settings, ports, streams, server, discovery=discovery, watch=watch)
    try:
        await _run_within_grace(
            member.run(stop),
            stop=stop,
            abandon=abandon,
            grace_ms=milliseconds(settings.process.grace),
            clock=ports.clock,
            observe=ports.observe,
        )
    finally:
        if discovery is not None:
            await discovery.close()
        await handler.close()
    return reasons[0] if reasons else None


def _make_watch(settings: ConsumerSettings, ports: WorkerPorts, streams: Streams) -> FindingWatch:
    limits = HealthLimits(
        failover_ms=milliseconds(settings.fleet.failover_after),
        stuck_after_ms=milliseconds(settings.observe.stuck_after),
    )
    return FindingWatch(ports.worker, streams, limits, ports.clock, has_progress=True)


def _make_discovery(
    settings: ConsumerSettings, ports: WorkerPorts, streams: Streams, runners: HandlerRunners
) -> StreamDiscovery | None:
    identity = settings.identity
    if not identity.is_discovering:
        return None
    assert ports.directory is not None, "a consumer that discovers its streams needs a directory of streams"
    if callable(identity.streams):
        find = find_by_function(identity, identity.streams, runners.runner_for("streams"), ports.clock)
    else:
        find = find_listed(identity, ports.directory)
    return StreamDiscovery(
        streams=streams,
        find=find,
        open_stream=ports.directory.open_stream,
        every_ms=milliseconds(identity.discover_streams_every),
    )


def _make_consumers(settings: ConsumerSettings, ports: WorkerPorts) -> StreamConsumers | None:
    """The registered consumers of the streams; None if the streams are polled."""
    if not settings.fan_out.is_fan_out:
        return None
    assert ports.open_fan_out is not None, "a consumer that subscribes to shards needs fan-out"
    return StreamConsumers(
        ports.open_fan_out,
        settings.fan_out,
        application=settings.identity.application,
        clock=ports.clock,
        rng=ports.rng,
        observe=ports.observe,
    )


def _make_context(
    settings: ConsumerSettings, ports: WorkerPorts, stop_worker: Callable[[BaseException], None]
) -> WorkerContext:
    return WorkerContext(
        application=settings.identity.application,
        settings=settings.handling,
        dead_letters=ports.dead_letters,
        handler_slots=asyncio.Semaphore(settings.process.max_handlers),
        clock=ports.clock,
        rng=ports.rng,
        observe=ports.observe,
        stop_worker=stop_worker,
    )


def _make_member(
    settings: ConsumerSettings,
    ports: WorkerPorts,
    streams: Streams,
    server: ShardServer,
    *,
    discovery: StreamDiscovery | None,
    watch: FindingWatch,
) -> Member:
    return Member(
        MemberPorts(
            table=ports.table,
            streams=streams,
            clock=ports.clock,
            rng=ports.rng,
            observe=ports.observe,
            load=ports.load,
            discovery=discovery,
            watch=watch,
        ),
        application=settings.identity.application,
        worker=ports.worker,
        serve=server,
        settings=settings.fleet,
    )


async def _run_within_grace(
    running: Coroutine[Any, Any, None],
    *,
    stop: asyncio.Event,
    abandon: asyncio.Event,
    grace_ms: int,
    clock: Clock,
    observe: Observer,
) -> None:
    """Run until the end. After `stop` it ends within the grace period, even if a handler does not return."""
    task = asyncio.ensure_future(running)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for_handlers_ms = int(grace_ms * HANDLERS_SHARE_OF_GRACE)
        if not await _ends_within(task, for_handlers_ms, clock):
            observe(
                OperationFailed(
                    "stop",
                    f"handlers still run after {for_handlers_ms} ms: their records will be delivered again",
                )
            )
            abandon.set()
            if not await _ends_within(task, grace_ms - for_handlers_ms, clock):
                observe(
                    OperationFailed("stop", f"leases are not released after {grace_ms} ms: they will expire")
                )
    finally:
        await cancel_and_wait(task, stopping)
    if not task.cancelled():
        task.result()


async def _ends_within(task: asyncio.Future[None], time_ms: int, clock: Clock) -> bool:
    await first_of(wait_for(task), clock.sleep_ms(time_ms))
    return task.done()
