"""How busy a query says it is: by its batches, whose ends it may have to be told."""

import asyncio
from pathlib import Path

import pytest

from leasehold.core.coordinator.worker_metrics import LoadSamples
from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from leasehold.spark.query.batch_load import BatchEndFile, BatchLoad

STAMP = GenerationId("00c0ffee", 7)


@pytest.fixture
def ends(tmp_path: Path) -> BatchEndFile:
    """Where ends are noted."""
    return BatchEndFile(tmp_path / "batch-end")


def test_a_query_that_waits_is_idle(ends: BatchEndFile) -> None:
    """A batch lasts until the next one is wanted; when there is none, the query waits."""

    async def run() -> list[float | None]:
        load, figures = BatchLoad(VirtualClock(), ends), []
        for _ in range(2):
            figures.append(await load.percent())
            load.begin()
            await asyncio.sleep(1)
            load.end()
            await asyncio.sleep(3)
        return [*figures, await load.percent()]

    assert run_in_virtual_time(run()) == [None, 25, 25]


def test_the_pause_of_a_trigger_is_no_work(ends: BatchEndFile) -> None:
    """Whoever watches the query tells when a batch ended, long before the next one is wanted."""

    async def run() -> tuple[float, ...]:
        clock, samples = VirtualClock(), LoadSamples()
        load = BatchLoad(clock, ends)
        await load.percent()
        for _ in range(3):
            load.begin()
            for second in range(10):
                await asyncio.sleep(1)
                samples = samples.with_sample(await load.percent())
                if second == 2:
                    ends.record(clock.wall_ms(), STAMP)
            load.end()
        return samples.with_average().reported

    assert run_in_virtual_time(run()) == (30,)


def test_an_end_that_is_told_late_ends_no_later_batch(ends: BatchEndFile) -> None:
    """With short batches the next one may have begun when the end of the last is told."""

    async def run() -> float | None:
        clock = VirtualClock()
        load = BatchLoad(clock, ends)
        await load.percent()
        load.begin()
        await asyncio.sleep(1)
        ended_ms = clock.wall_ms()
        load.end()
        await asyncio.sleep(0.5)
        load.begin()
        ends.record(ended_ms, STAMP)
        await asyncio.sleep(0.5)
        return await load.percent()

    assert run_in_virtual_time(run()) == 75


def test_ends_are_forgotten_with_the_query(ends: BatchEndFile) -> None:
    """The folder of the driver's machine is left as it was; nobody minds a second time, nor one that cannot write."""
    assert ends.last_end_ms() is None
    ends.record(1_794_801_600_123, STAMP)
    assert (ends.last_end_ms(), ends.last_committed()) == (1_794_801_600_123, STAMP)
    ends.delete()
    ends.delete()
    assert (ends.last_end_ms(), ends.last_committed()) == (None, None)
    BatchEndFile(ends.file / "no such folder").record(1, STAMP)
