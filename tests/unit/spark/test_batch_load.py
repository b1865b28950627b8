"""The load of a query, from the beginnings and ends of its batches."""

import asyncio
from pathlib import Path

import pytest

from leasehold.core.coordinator.worker_metrics import LoadSamples
from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from leasehold.spark.query.batch_load import BatchEndFile, BatchLoad

GENERATION = GenerationId("00c0ffee", 7)


@pytest.fixture
def ends(tmp_path: Path) -> BatchEndFile:
    """The file for the ends of batches."""
    return BatchEndFile(tmp_path / "batch-end")


def test_a_waiting_query_has_no_load(ends: BatchEndFile) -> None:
    """A batch lasts until Spark asks for the next one. Without new records the query waits."""

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


def test_the_pause_of_a_trigger_is_not_load(ends: BatchEndFile) -> None:
    """The pipeline records the end of a batch long before Spark asks for the next one."""

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
                    ends.record(clock.wall_ms(), GENERATION)
            load.end()
        return samples.with_average().reported

    assert run_in_virtual_time(run()) == (30,)


def test_an_end_that_is_recorded_late_does_not_end_a_later_batch(ends: BatchEndFile) -> None:
    """With short batches, the next batch may have begun when the end of the last one is recorded."""

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
        ends.record(ended_ms, GENERATION)
        await asyncio.sleep(0.5)
        return await load.percent()

    assert run_in_virtual_time(run()) == 75


def test_the_file_is_deleted_with_the_query(ends: BatchEndFile) -> None:
    """Deleting it twice is no error, and neither is a folder that cannot be written."""
    assert ends.last_end_ms() is None
    ends.record(1_794_801_600_123, GENERATION)
    assert (ends.last_end_ms(), ends.last_committed()) == (1_794_801_600_123, GENERATION)
    ends.delete()
    ends.delete()
    assert (ends.last_end_ms(), ends.last_committed()) == (None, None)
    BatchEndFile(ends.file / "no such folder").record(1, GENERATION)
