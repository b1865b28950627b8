"""Compacts a large archive with Spark: the driver lists, plans and deletes, and each task merges one group.

A task may outlive the job: its driver was killed or cut off, or the job failed. So each task shares the lock of the
archive, and creates nothing once the lock was released or taken.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from leasehold.adapters.system_clock import SystemClock
from leasehold.archive.compaction import (
    CompactionReport,
    CompactionSettings,
    Compactor,
    Progress,
    compact,
    requiring_lock,
)
from leasehold.archive.compaction_lock import CompactionLock
from leasehold.archive.reading import open_archive
from leasehold.archive.settings import ArchiveSettings
from leasehold.core.exactly_once.compaction_plan import Group
from leasehold.errors import NotFoundError


def compact_with_spark(
    spark: Any, archive: ArchiveSettings, settings: CompactionSettings | None
) -> CompactionReport:
    """Compact an archive on the executors of a Spark session. Tasks that Spark repeats create the same objects."""
    chosen = replace(settings or CompactionSettings(), prefix=archive.prefix)
    owner = uuid.uuid4().hex

    def merge_groups(groups: Sequence[Group], progress: Progress) -> CompactionReport:
        total = CompactionReport()
        tasks = spark.sparkContext.parallelize(groups, max(1, len(groups)))
        for report in tasks.map(lambda group: merge_in_task(archive, chosen, group, owner)).toLocalIterator():
            total.add(report)
            progress(report.merged)
        return total

    async def merge_all(groups: Sequence[Group], progress: Progress) -> CompactionReport:
        # In a thread: meanwhile the event loop renews the lock.
        return await asyncio.to_thread(merge_groups, groups, progress)

    async def run() -> CompactionReport:
        compactor = _compactor(archive, chosen)
        if not await compactor.has_archive():
            below = f" below prefix {archive.prefix!r}" if archive.prefix else ""
            raise NotFoundError(
                f"{archive.url} has no object of an archive{below}: check the URL and the prefix"
            )
        return await compact(compactor, _lock(archive, owner), merge_all=merge_all)

    return asyncio.run(run())


def merge_in_task(
    archive: ArchiveSettings, settings: CompactionSettings, group: Group, owner: str
) -> CompactionReport:
    """Merge a group on an executor. Raises CompactionLockedError if `owner` does not have the lock any more."""

    async def run() -> CompactionReport:
        compactor, lock = _compactor(archive, settings), _lock(archive, owner)
        await lock.renew()
        async with requiring_lock(compactor, lock):
            return await compactor.merge(group)

    return asyncio.run(run())


def _lock(archive: ArchiveSettings, owner: str) -> CompactionLock:
    return CompactionLock(open_archive(archive).objects, archive.prefix, SystemClock(), owner=owner)


def _compactor(archive: ArchiveSettings, settings: CompactionSettings) -> Compactor:
    # The random numbers only spread the pauses between attempts.
    return Compactor(open_archive(archive).objects, settings, clock=SystemClock(), rng=random.Random())  # noqa: S311
