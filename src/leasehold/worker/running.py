"""A worker's whole life: a member of the fleet that serves shards with user code, until it is told to stop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from leasehold.core.events import Observe, StepFailed, WorkerFailed
from leasehold.core.model import WorkerId
from leasehold.fleet.byte_budget import ByteBudget
from leasehold.fleet.lease_table import LeaseTable
from leasehold.fleet.member import Member
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.ports import Clock, LoadMeter, Stream
from leasehold.settings import milliseconds
from leasehold.worker.dead_letters import DeadLetters
from leasehold.worker.served_shard import Form, Workplace
from leasehold.worker.serving import ShardServer
from leasehold.worker.settings import HANDLERS_SHARE_OF_GRACE, ConsumerSettings
from leasehold.worker.user_code import UserCode
from leasehold.worker.waiting import cancelled


@dataclass(frozen=True, slots=True)
class Outside:
    """Everything outside of a worker, behind ports."""

    worker: WorkerId
    table: LeaseTable
    streams: Mapping[str, Stream]  # by the names that the settings give them
    dead_letters: DeadLetters | None
    clock: Clock
    rng: random.Random
    observe: Observe
    load: LoadMeter | None = None  # how busy this process is; None: nothing is measured


async def run_worker(
    settings: ConsumerSettings,
    form: Form,
    outside: Outside,
    user_code: UserCode,
    stop: asyncio.Event,
) -> BaseException | None:
    """Serve shards until `stop` is set, then let go of everything in good order.

    Returns what made the worker stop by itself, if something did. Raises what keeps it from starting.
    """
    reasons: list[BaseException] = []

    def stop_worker(reason: BaseException) -> None:
        reasons.append(reason)
        outside.observe(WorkerFailed(type(reason).__name__))
        stop.set()

    identity, abandon = settings.identity, asyncio.Event()
    streams = Streams(
        [TrackedStream(name, outside.streams[name], at) for name, at in identity.positions.items()],
        have_prefix=bool(identity.streams),
    )
    server = ShardServer(
        form=form,
        workplace=Workplace(
            stream=",".join(identity.positions),
            application=identity.application,
            settings=settings.handling,
            dead_letters=outside.dead_letters,
            handlers=asyncio.Semaphore(settings.process.max_handlers),
            clock=outside.clock,
            rng=outside.rng,
            observe=outside.observe,
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
        table=outside.table,
        streams=streams,
        application=identity.application,
        worker=outside.worker,
        serve=server,
        settings=settings.fleet,
        clock=outside.clock,
        rng=outside.rng,
        observe=outside.observe,
        load=outside.load,
    )
    await _within_grace(
        member.run(stop),
        stop=stop,
        abandon=abandon,
        grace_ms=milliseconds(settings.process.grace),
        clock=outside.clock,
        observe=outside.observe,
    )
    return reasons[0] if reasons else None


async def _within_grace(
    running: Coroutine[Any, Any, None],
    *,
    stop: asyncio.Event,
    abandon: asyncio.Event,
    grace_ms: int,
    clock: Clock,
    observe: Observe,
) -> None:
    """Run to the end, which comes within the grace period after `stop`, whatever handlers do."""
    task = asyncio.ensure_future(running)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for_handlers_ms = int(grace_ms * HANDLERS_SHARE_OF_GRACE)
        if not await _ends_within(task, for_handlers_ms, clock):
            observe(
                StepFailed("stop", f"handlers still run after {for_handlers_ms} ms: their records come again")
            )
            abandon.set()
            if not await _ends_within(task, grace_ms - for_handlers_ms, clock):
                observe(StepFailed("stop", f"leases are not released after {grace_ms} ms: they will expire"))
    finally:
        await cancelled(task, stopping)
    if not task.cancelled():
        task.result()


async def _ends_within(task: asyncio.Future[None], time_ms: int, clock: Clock) -> bool:
    timer = asyncio.ensure_future(clock.sleep_ms(time_ms))
    await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
    await cancelled(timer)
    return task.done()
