"""A task of a compaction with Spark changes the archive only while its compaction has the lock."""

import asyncio
import random
from pathlib import Path

import pytest

from leasehold.adapters.system_clock import SystemClock
from leasehold.archive import Archive, ArchiveSettings
from leasehold.archive.compaction import CompactionSettings, Compactor
from leasehold.archive.compaction_lock import CompactionLock
from leasehold.archive.rows import PinnedRange
from leasehold.core.exactly_once.compaction_plan import Group
from leasehold.errors import CompactionLockedError, ConfigError, NotFoundError
from leasehold.spark.archive_compaction import compact_with_spark, merge_in_task
from tests.unit.archive.archive_world import A, records, table

FAR_FUTURE_MS = 10**14
SETTINGS = CompactionSettings()


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveSettings:
    """An archive of 20 small objects."""
    settings = ArchiveSettings(url=str(tmp_path))
    pinned = [PinnedRange(A, "one", table(records([number]))) for number in range(20)]
    asyncio.run(Archive.open(settings).write(pinned))
    return settings


def plan(archive: ArchiveSettings) -> Group:
    """The objects that a driver lets a task merge."""
    compactor = Compactor(Archive.open(archive).store, SETTINGS, clock=SystemClock(), rng=random.Random(1))
    (group,) = asyncio.run(compactor.plan(store_time_ms=FAR_FUTURE_MS)).groups
    return group


def lock(archive: ArchiveSettings, owner: str) -> CompactionLock:
    """The lock as a driver has it."""
    return CompactionLock(Archive.open(archive).store, "", SystemClock(), owner=owner)


def compacted(archive: ArchiveSettings) -> list[Path]:
    """The large objects."""
    return list(Path(archive.url).rglob("*.since-*"))


def test_a_task_merges_while_its_driver_has_the_lock(archive: ArchiveSettings) -> None:
    """A second attempt at the task finds the same object."""
    asyncio.run(lock(archive, "driver").acquire())
    group = plan(archive)
    for _ in range(2):
        assert merge_in_task(archive, SETTINGS, group, "driver").merged == len(group.objects)
    assert len(compacted(archive)) == 1


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_task_that_outlives_its_job_changes_nothing(archive: ArchiveSettings, is_taken: bool) -> None:
    """The job has failed and released the lock, and another compaction may have taken it."""

    async def end_job() -> None:
        driver = lock(archive, "driver")
        await driver.acquire()
        await driver.release()
        if is_taken:
            await lock(archive, "another").acquire()

    asyncio.run(end_job())
    with pytest.raises(CompactionLockedError):
        merge_in_task(archive, SETTINGS, plan(archive), "driver")
    assert compacted(archive) == []


def test_a_place_without_an_archive_is_refused(tmp_path: Path) -> None:
    """Nothing is created there, neither the lock nor a folder."""
    settings = ArchiveSettings(url=str(tmp_path), prefix="orders")
    with pytest.raises(NotFoundError, match="has no object of an archive below prefix 'orders'"):
        compact_with_spark(None, settings, None)
    with pytest.raises(ConfigError):
        compact_with_spark(None, ArchiveSettings(url=str(tmp_path / "absent")), None)
    assert not list(tmp_path.iterdir())
