"""Processes that compact the archive and read it while workers write to it: the shipped code of both."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from leasehold.archive.compaction import CompactionSettings, Compactor, compact
from leasehold.archive.compaction_lock import CompactionLock
from leasehold.archive.reading import ALL_TIME, list_objects, read_shard
from leasehold.archive.shard_rows import ArchiveStore
from leasehold.core.model import LeaseKey
from leasehold.errors import CompactionLockedError, ThrottledError, UnavailableError
from leasehold.simulation.environment.archived_objects import ArchiveRead
from leasehold.simulation.environment.ledger import RecordKey
from leasehold.simulation.environment.process import Role, SimulatedProcess
from leasehold.simulation.world import World
from leasehold.tasks import cancel_and_wait

# The shortest times that the settings allow, so that a run of minutes has all steps of a compaction.
SETTINGS: Final = CompactionSettings(target_bytes=20_000, older_than_ms=60_000, delete_after_ms=60_000)
_COMPACTORS: Final = 2  # the lock keeps them apart
_CHECK_EVERY_MS: Final = 5_000
_IDENTITY: Final = ("shardId", "sequenceNumber", "subSequenceNumber")


async def keep_processes(world: World, until: asyncio.Event) -> None:
    """Start compactors and a reader, and start them again when they were killed."""
    wanted = ((Role.COMPACTOR, _COMPACTORS, compactor_main), (Role.ARCHIVE_READER, 1, reader_main))
    while not until.is_set():
        for role, count, make_main in wanted:
            alive = sum(each.is_alive for each in world.processes if each.role is role)
            for _ in range(count - alive):
                world.start_process(make_main, role=role)
        await world.clock.sleep_ms(_CHECK_EVERY_MS)


async def compactor_main(world: World, process: SimulatedProcess) -> None:
    """Compact the archive again and again until the process is asked to stop."""
    rng = world.spec.rng_for(f"{process.name}:compactor")
    store = world.services.objects_for(process)

    async def work() -> None:
        lock = CompactionLock(store, "", process.clock, owner=f"{process.name}-{rng.random()}")
        compactor = Compactor(store, SETTINGS, clock=process.clock, rng=rng, in_thread=_call_directly)
        # A task of its own: the coroutine of a dead process is closed from outside, and this one waits in its cleanup.
        report = await asyncio.ensure_future(compact(compactor, lock))
        if report.created or report.deleted or report.skipped:
            detail = f"{report.merged} objects to {report.created}, {report.deleted} deleted {report.skipped or ''}"
            world.trace.add(process.name, "compacts", "", detail)

    await _repeat(process, rng, work)


async def reader_main(world: World, process: SimulatedProcess) -> None:
    """Read the whole archive again and again until the process is asked to stop."""
    rng = world.spec.rng_for(f"{process.name}:reader")
    store = ArchiveStore(
        world.services.objects_for(process), "", process.clock, rng, in_thread=_call_directly
    )

    async def work() -> None:
        before = frozenset((each.shard, key) for each in world.archived.values() for key in each.records)
        records: list[tuple[LeaseKey, RecordKey]] = []
        for shard, objects in (await list_objects(store, ALL_TIME)).items():
            async for table in read_shard(store, shard, ALL_TIME, _IDENTITY, objects=objects):
                records += [
                    (LeaseKey(row["shardId"]), (int(row["sequenceNumber"]), row["subSequenceNumber"]))
                    for row in table.to_pylist()
                ]
        world.archive_read(ArchiveRead(process, before, records))

    await _repeat(process, rng, work)


async def _repeat(process: SimulatedProcess, rng: random.Random, work: Callable[[], Awaitable[None]]) -> None:
    """Repeat some work with pauses. A stop interrupts it, as a signal does."""
    stopping = asyncio.ensure_future(process.stop.wait())
    try:
        while not process.stop.is_set():
            turn = asyncio.ensure_future(_turn(process, rng, work))
            await asyncio.wait({turn, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not turn.done():
                await cancel_and_wait(turn)
            else:
                turn.result()
    finally:
        await cancel_and_wait(stopping)


async def _turn(process: SimulatedProcess, rng: random.Random, work: Callable[[], Awaitable[None]]) -> None:
    await process.clock.sleep_ms(rng.randint(1_000, 20_000))
    try:
        await work()
    except (CompactionLockedError, UnavailableError, ThrottledError):
        return  # the next turn continues


async def _call_directly(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
