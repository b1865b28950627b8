"""The main coroutine of a worker process: the shipped `run_worker` with a simulated handler."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from leasehold.config.settings import BalanceBy, FleetSettings, Mode, ReadSettings
from leasehold.core.model import InitialPosition, LeaseKey
from leasehold.core.record import UserRecord
from leasehold.errors import LeaseholdError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.simulation.environment.network import Dependency
from leasehold.simulation.environment.ownership import Delivery
from leasehold.simulation.environment.process import SimulatedProcess
from leasehold.simulation.environment.services import APPLICATION
from leasehold.simulation.environment.streams import STREAM
from leasehold.simulation.faults import FaultMix
from leasehold.simulation.loads import SimulatedMeter
from leasehold.simulation.world import World
from leasehold.worker.batch import Batch
from leasehold.worker.batch_handler import BatchHandler
from leasehold.worker.dead_letters import DeadLetter, DeadLetters
from leasehold.worker.delivered_record import DeliveredRecord
from leasehold.worker.delivery.shard_consumer import HandlerKind
from leasehold.worker.engine.run_worker import WorkerPorts, run_worker
from leasehold.worker.record_handler import RecordHandler
from leasehold.worker.settings import (
    BatchSettings,
    CheckpointSettings,
    ConsumerIdentity,
    ConsumerSettings,
    ErrorSettings,
    HandlingSettings,
    ProcessSettings,
)
from leasehold.worker.user_code.handler_runners import InlineRunners

_MIB: Final = 1024 * 1024
_WAITS_MS: Final = (0, 500, 500, 2_000)


class PoisonError(Exception):
    """Raised for a poison record."""


class FlakyHandlerError(Exception):
    """Raised by a handler that fails at random, before its effect or after it, or whose sink does not respond."""


def worker_settings(
    mix: FaultMix, mode: Mode, initial: InitialPosition, rng: random.Random
) -> ConsumerSettings:
    """Return the settings of every worker: drawn limits of a batch, and shorter intervals for rare operations."""
    return ConsumerSettings(
        identity=ConsumerIdentity(stream=STREAM, application=APPLICATION, initial_position=initial),
        handling=HandlingSettings(
            batch=_draw_batch_settings(mix, rng),
            errors=ErrorSettings(retries=2, retry_max_wait=timedelta(seconds=2), dead_letters="simulated"),
            checkpoints=CheckpointSettings(checkpoint_every=timedelta(seconds=2)),
        ),
        process=ProcessSettings(grace=timedelta(seconds=25)),
        fleet=FleetSettings(
            mode=mode,
            balance_by=BalanceBy.COUNT,
            failover_after=timedelta(seconds=mix.failover_s),
            refresh_every=timedelta(seconds=1.5),
            handoff_timeout=timedelta(seconds=10),
            cooldown_after_failure=timedelta(seconds=5),
            first_audit_after=timedelta(seconds=10),
            audit_every=timedelta(seconds=10),
            clean_up_every=timedelta(seconds=10),
        ),
        read=ReadSettings(buffer_bytes=1024 * 1024),
    )


def _draw_batch_settings(mix: FaultMix, rng: random.Random) -> BatchSettings:
    """Draw the limits of a batch. Small batches end within aggregates."""
    records, size, wait_ms = (
        rng.choice((10, 50, 50, 1_000)),
        rng.choice((400, _MIB, _MIB)),
        rng.choice(_WAITS_MS),
    )
    if mix.slow_handler_share or mix.failing_share:
        # Small batches would take too long.
        records, size = max(records, 50), _MIB
    return BatchSettings(max_records=records, max_bytes=size, max_wait=timedelta(milliseconds=wait_ms))


async def worker_main(world: World, process: SimulatedProcess) -> BaseException | None:
    """Run a worker until it stops."""
    handler = SimulatedHandler(world, process, world.spec.rng_for(f"{process.name}:handler"))
    if world.settings.handling.records.concurrency > 1:
        return await run_simulated_worker(world, process, RecordHandler(handler.handle_record))
    return await run_simulated_worker(world, process, BatchHandler(handler))


async def run_simulated_worker(
    world: World, process: SimulatedProcess, handler: HandlerKind
) -> BaseException | None:
    """Run a worker with this handler until it stops."""
    services, identity = world.services, world.settings.identity
    ports = WorkerPorts(
        worker=process.worker,
        table=LeaseTable(services.rows_for(process)),
        streams={name: services.stream_for(process, world, name) for name in identity.initial_positions},
        dead_letters=_DeadLettersOverNetwork(world, process),
        clock=process.clock,
        rng=world.spec.rng_for(f"{process.name}:engine"),
        observe=lambda event: world.observe(process, event),
        load=None if world.load is None else SimulatedMeter(world, process, world.load),
        directory=services.directory_for(process, world) if identity.is_discovering else None,
        open_fan_out=lambda name: services.fan_out_for(process, world, name),
    )
    return await run_worker(world.settings, handler, ports, InlineRunners(), process.stop)


def key_of(fencing_token: str) -> LeaseKey:
    """Return the key of a lease: the fencing token without the counter."""
    return LeaseKey(fencing_token.rpartition(":")[0])


def begin_delivery(
    world: World, process: SimulatedProcess, records: Sequence[UserRecord], fencing_token: str, attempt: int
) -> Delivery | None:
    """Record that a handler was called. Returns None, and reports it, if records were never produced."""
    shard = key_of(fencing_token)
    found = world.ledger.indexes(shard, records)
    indexes = [index for index in found if index is not None]
    if not indexes or len(indexes) < len(found):
        world.promises.report(
            "nothing-invented", f"{process.name} was given records that were never produced"
        )
        return None
    first, last = indexes[0], indexes[-1]
    process.handled_bytes += sum(len(each.data) for each in records)
    kept_from = max(first, world.ledger.shard(shard).trimmed_before)
    kept = [index for index in indexes if index >= kept_from]
    if sorted(set(indexes)) != indexes or kept != list(range(kept_from, last + 1)):
        world.promises.report(
            "order-within-a-session",
            f"the records from {records[0]!r} of {shard} are not a contiguous run of records",
        )
    ownership = world.ownerships.find_by_token(fencing_token, process)
    delivery = Delivery(process, shard, fencing_token, ownership, first, last, attempt, world.now_ms())
    world.delivery_began(delivery)
    return delivery


class SimulatedHandler:
    """User code: works for some time, fails at random, and writes records to the sink."""

    def __init__(self, world: World, process: SimulatedProcess, rng: random.Random) -> None:
        self._world = world
        self._process = process
        self._rng = rng

    async def __call__(self, batch: Batch) -> None:
        """Handle one batch."""
        delivery = begin_delivery(
            self._world, self._process, batch.records, batch.fencing_token, batch.attempt
        )
        if delivery is None:
            return
        try:
            await self._work(delivery)
            await self._store(batch, delivery)
        finally:
            delivery.is_over = True

    async def handle_record(self, record: DeliveredRecord) -> None:
        """Handle one record, while others are handled."""
        delivery = begin_delivery(
            self._world, self._process, [record.record], record.fencing_token, record.attempt
        )
        if delivery is None:
            return
        try:
            await self._work(delivery)
            self._world.delivery_done(delivery)
        finally:
            delivery.is_over = True

    async def _work(self, delivery: Delivery) -> None:
        mix, rng = self._world.spec.mix, self._rng
        work_ms = rng.randint(1, 50)
        if rng.random() < mix.slow_handler_share:
            work_ms = rng.randint(1_000, 30_000)
        await self._process.clock.sleep_ms(work_ms)
        shard_ledger = self._world.ledger.shard(delivery.shard)
        if any(index in shard_ledger.poison for index in range(delivery.first, delivery.last + 1)):
            raise PoisonError
        if rng.random() < mix.failing_share:
            raise FlakyHandlerError

    async def _store(self, batch: Batch, delivery: Delivery) -> None:
        mix, rng = self._world.spec.mix, self._rng
        if not self._world.services.sink.is_two_phase:
            self._world.delivery_done(delivery)
            return
        prepared = await batch.prepare()
        await self._create_object(batch, delivery)
        if mix.failing_share and rng.random() < mix.failing_share:
            raise FlakyHandlerError
        self._world.delivery_done(delivery)
        await prepared.commit()

    async def _create_object(self, batch: Batch, delivery: Delivery) -> None:
        """Create the object. A failed call may have created it: the handler is called again, with the same range."""
        services = self._world.services
        keys = tuple(self._world.ledger.shard(delivery.shard).keys[delivery.first : delivery.last + 1])
        name = (delivery.shard, str(batch.start), str(batch.end))
        try:
            await services.network.call(
                self._process, Dependency.SINK, "create", lambda: services.sink.create(name, keys)
            )
        except LeaseholdError as error:
            raise FlakyHandlerError from error


class _DeadLettersOverNetwork(DeadLetters):
    """Stores dead letters over the network."""

    def __init__(self, world: World, process: SimulatedProcess) -> None:
        self._world = world
        self._process = process

    async def put(self, letter: DeadLetter) -> None:
        await self._world.services.network.call(
            self._process, Dependency.DEAD_LETTERS, "put", lambda: self._store(letter)
        )

    def _store(self, letter: DeadLetter) -> None:
        self._world.dead_letter_stored(letter.stream, letter.shard, letter.record)
