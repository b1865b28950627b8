"""The main coroutine of a worker that archives its stream: the shipped archive handler, with simulated objects."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from leasehold.archive.archive import Archive, WriteReport
from leasehold.archive.rows import PinnedRange
from leasehold.archive.settings import ArchiveSettings
from leasehold.config.settings import Mode
from leasehold.core.model import InitialPosition, ShardId
from leasehold.simulation.environment.ownership import Delivery
from leasehold.simulation.environment.process import SimulatedProcess
from leasehold.simulation.faults import FaultMix
from leasehold.simulation.worker_process import (
    FlakyHandlerError,
    begin_delivery,
    run_simulated_worker,
    worker_settings,
)
from leasehold.simulation.world import World
from leasehold.worker.archive_handler import archive_handler
from leasehold.worker.batch import Batch
from leasehold.worker.batch_handler import BatchHandler
from leasehold.worker.settings import (
    BatchSettings,
    ConsumerSettings,
    ErrorSettings,
    HandlingSettings,
    OnPoison,
)

_FORMATS: Final = (("parquet", "zstd"), ("jsonl", "none"))


def archiving_settings(
    mix: FaultMix, mode: Mode, initial: InitialPosition, rng: random.Random
) -> ConsumerSettings:
    """Return the settings of every archiving worker: those that `archive_batches` fixes, and shorter waits."""
    settings = worker_settings(mix, mode, initial, rng)
    batch = BatchSettings(max_records=rng.choice((5, 50, 50_000)), max_wait=timedelta(seconds=2))
    errors = ErrorSettings(retry_max_wait=timedelta(seconds=2), bisect=False, on_poison=OnPoison.HOLD)
    handling = HandlingSettings(batch=batch, errors=errors, checkpoints=settings.handling.checkpoints)
    return replace(settings, handling=handling)


async def archiving_worker_main(world: World, process: SimulatedProcess) -> BaseException | None:
    """Run an archiving worker until it stops."""
    return await run_simulated_worker(world, process, BatchHandler(ArchivingHandler(world, process)))


def open_simulated_archive(world: World, process: SimulatedProcess) -> Archive:
    """Open the archive of the run as a process reaches it. All processes use the same format."""
    return Archive(world.services.objects_for(process), **_archive_arguments(world, process))


def _archive_arguments(world: World, process: SimulatedProcess) -> dict[str, Any]:
    file_format, compression = world.spec.rng_for("archive").choice(_FORMATS)
    return {
        "settings": ArchiveSettings(url="simulated", format=file_format, compression=compression),
        "clock": process.clock,
        "rng": world.spec.rng_for(f"{process.name}:archive"),
        "in_thread": _call_directly,
    }


async def _call_directly(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


class ArchivingHandler:
    """The shipped archive handler, with user code around it that fails at random."""

    def __init__(self, world: World, process: SimulatedProcess) -> None:
        self._world = world
        self._process = process
        self._rng = world.spec.rng_for(f"{process.name}:handler")
        self._deliveries: dict[ShardId, Delivery] = {}
        self._archive = archive_handler(self._open)

    async def __call__(self, batch: Batch) -> None:
        """Handle one batch."""
        delivery = None
        if batch.records:
            delivery = begin_delivery(
                self._world, self._process, batch.records, batch.fencing_token, batch.attempt
            )
        if delivery is None:
            await self._archive(batch)
            return
        self._deliveries[batch.shard] = delivery
        try:
            self._fail_at_random()
            await self._archive(batch)
            self._fail_at_random()
        finally:
            delivery.is_over = True

    def _open(self) -> Archive:
        return _ObservedArchive(self._world, self._process, self._deliveries)

    def _fail_at_random(self) -> None:
        if self._rng.random() < self._world.spec.mix.failing_share:
            raise FlakyHandlerError


class _ObservedArchive(Archive):
    """The archive, which also reports that the handler of a range has written it."""

    def __init__(self, world: World, process: SimulatedProcess, deliveries: dict[ShardId, Delivery]) -> None:
        super().__init__(world.services.objects_for(process), **_archive_arguments(world, process))
        self._world = world
        self._deliveries = deliveries

    async def write(self, ranges: Iterable[PinnedRange]) -> WriteReport:
        written = list(ranges)
        report = await super().write(written)
        for each in written:
            self._world.delivery_done(self._deliveries[each.shard])
        return report
