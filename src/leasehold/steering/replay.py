"""Replays a period of a stream to a consumer, beside its fleet: with leases in memory, under another application name.

Nothing of the replay is stored, so there is nothing to delete afterwards, however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import FanOutSettings, Mode
from leasehold.core.events import BatchHandled, Event
from leasehold.core.model import InitialPosition, ShardId
from leasehold.core.position import Position
from leasehold.errors import ConfigError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Stream
from leasehold.steering.bounded_stream import BoundedStream
from leasehold.tasks import cancel_and_wait
from leasehold.worker.consumer import Consumer
from leasehold.worker.engine.run_worker import WorkerPorts
from leasehold.worker.settings import ConsumerSettings
from leasehold.worker.user_code.handler_runners import HandlerRunners

_CHECK_EVERY_MS: Final = 250


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """The period: from a position to a time. Records that arrived at `end_ms` or later are left out."""

    start: InitialPosition
    end_ms: int


@dataclass
class ReplayProgress:
    """What has been replayed. `shards` is the number of shards that were found so far."""

    records: int = 0
    shards: int = 0
    shards_done: int = 0
    handled_to: dict[ShardId, Position] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        """Note a handled batch."""
        if isinstance(event, BatchHandled):
            self.records += event.records
            self.handled_to[event.shard] = event.end


def replay_settings(settings: ConsumerSettings, name: str, period: ReplayRange) -> ConsumerSettings:
    """The settings of a consumer for a replay: another application, alone, by polling, from another position."""
    if settings.identity.is_multi_stream:
        raise ConfigError("a replay reads a single stream: name a consumer with stream=, not with streams=")
    return replace(
        settings,
        identity=replace(settings.identity, application=name, worker_id=name, initial_position=period.start),
        fleet=replace(settings.fleet, mode=Mode.PEER),
        fan_out=FanOutSettings(),  # a registered consumer costs money
        observe=replace(settings.observe, status_port=None),
    )


async def run_replay(
    consumer: Consumer,
    settings: ConsumerSettings,
    period: ReplayRange,
    ports: WorkerPorts,
    runners: HandlerRunners,
    *,
    stop: asyncio.Event,
    tell: Callable[[ReplayProgress], None] = lambda _: None,
) -> ReplayProgress:
    """Replay until every shard is handled to the end of the period, or `stop` is set. Raises the error of a handler.

    The table of `ports` is not used.
    """
    ((name, stream),) = ports.streams.items()
    bounded = BoundedStream(stream, ports.clock, period.end_ms, settings.deaggregation)
    table, progress = LeaseTable(MemoryRows()), ReplayProgress()

    def observe(event: Event) -> None:
        progress(event)
        ports.observe(event)

    streams: dict[str, Stream] = {name: bounded}
    inner = replace(ports, table=table, streams=streams, observe=observe, directory=None, open_fan_out=None)
    worker = asyncio.ensure_future(consumer.run_with_ports(inner, runners, stop, settings=settings))
    try:
        while not worker.done() and not await _is_done(table, bounded, progress):
            tell(progress)
            await asyncio.wait({worker}, timeout=_CHECK_EVERY_MS / 1000)
            if stop.is_set():
                break
        stop.set()
        reason = await worker
    finally:
        await cancel_and_wait(worker)
    if reason is not None:
        raise reason
    return progress


async def _is_done(table: LeaseTable, stream: BoundedStream, progress: ReplayProgress) -> bool:
    leases = (await table.list()).leases
    progress.shards = len(leases)
    done = 0
    for lease in leases:
        last, handled = stream.last.get(lease.shard_id), progress.handled_to.get(lease.shard_id)
        # A poison record that was disposed of is not handled, but the checkpoint passes it.
        reached = max([lease.checkpoint] if handled is None else [lease.checkpoint, handled])
        is_handled = last is None or reached >= last
        done += lease.checkpoint.is_shard_end or (lease.shard_id in stream.finished and is_handled)
    progress.shards_done = done
    return bool(leases) and done == len(leases)
