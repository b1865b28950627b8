"""A worker's whole life: a member of the fleet that serves shards with user code, until it is told to stop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from leasehold.config.settings import milliseconds
from leasehold.core.events import Observer, OperationFailed, WorkerFailed
from leasehold.core.model import WorkerId
from leasehold.fleet.member import Member
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Clock, LoadMeter, Stream
from leasehold.worker.dead_letters import DeadLetters
from leasehold.worker.delivery.served_shard import HandlerKind, WorkerContext
from leasehold.worker.engine.shard_server import ShardServer
from leasehold.worker.settings import HANDLERS_SHARE_OF_GRACE, ConsumerSettings
from leasehold.worker.user_code.handler_runners import HandlerRunners
from leasehold.worker.waiting import cancelled


@dataclass(frozen=True, slots=True)
class WorkerPorts:
    """Everything outside of a worker, behind ports."""

    worker: WorkerId
    table: LeaseTable
    streams: Mapping[str, Stream]  # by the names that the settings give them
    dead_letters: DeadLetters | None
    clock: Clock
    rng: random.Random
    observe: Observer
    load: LoadMeter | None = None  # how busy this process is; None: nothing is measured


async def run_worker(
    settings: ConsumerSettings,
    form: HandlerKind,
    ports: WorkerPorts,
    user_code: HandlerRunners,
    stop: asyncio.Event,
) -> BaseException | None:
    """Serve shards until `stop` is set, then let go of everything in good order.

    Returns what made the worker stop by itself, if something did. Raises what keeps it from starting.
    """
    reasons: list[BaseException] = []

    def stop_worker(reason: BaseException) -> None:
        reasons.append(reason)
        ports.observe(WorkerFailed(type(reason).__name__))
        stop.set()

    identity, abandon = settings.identity, asyncio.Event()
    streams = Streams(
        [TrackedStream(name, ports.streams[name], at) for name, at in identity.initial_positions.items()],
        is_multi_stream=bool(identity.streams),
    )
    server = ShardServer(
        form=form,
        context=WorkerContext(
            stream=",".join(identity.initial_positions),
            application=identity.application,
            settings=settings.handling,
            dead_letters=ports.dead_letters,
            handlers=asyncio.Semaphore(settings.process.max_handlers),
            clock=ports.clock,
            rng=ports.rng,
            observe=ports.observe,
            stop_worker=stop_worker,
        ),
        user_code=user_code,
        streams=streams,
        read=settings.read,
        deaggregation=settings.deaggregation,
        budget=ByteBudget(settings.read.buffer_bytes),
        abandon=abandon,
    )
    member = Member(
        table=ports.table,
        streams=streams,
        application=identity.application,
        worker=ports.worker,
        serve=server,
        settings=settings.fleet,
        clock=ports.clock,
        rng=ports.rng,
        observe=ports.observe,
        load=ports.load,
    )
    await _within_grace(
        member.run(stop),
        stop=stop,
        abandon=abandon,
        grace_ms=milliseconds(settings.process.grace),
        clock=ports.clock,
        observe=ports.observe,
    )
    return reasons[0] if reasons else None


async def _within_grace(
    running: Coroutine[Any, Any, None],
    *,
    stop: asyncio.Event,
    abandon: asyncio.Event,
    grace_ms: int,
    clock: Clock,
    observe: Observer,
) -> None:
    """Run to the end, which comes within the grace period after `stop`, whatever handlers do."""
    task = asyncio.ensure_future(running)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for_handlers_ms = int(grace_ms * HANDLERS_SHARE_OF_GRACE)
        if not await _ends_within(task, for_handlers_ms, clock):
            observe(
                OperationFailed(
                    "stop", f"handlers still run after {for_handlers_ms} ms: their records come again"
                )
            )
            abandon.set()
            if not await _ends_within(task, grace_ms - for_handlers_ms, clock):
                observe(
                    OperationFailed("stop", f"leases are not released after {grace_ms} ms: they will expire")
                )
    finally:
        await cancelled(task, stopping)
    if not task.cancelled():
        task.result()


async def _ends_within(task: asyncio.Future[None], time_ms: int, clock: Clock) -> bool:
    timer = asyncio.ensure_future(clock.sleep_ms(time_ms))
    await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
    await cancelled(timer)
    return task.done()
