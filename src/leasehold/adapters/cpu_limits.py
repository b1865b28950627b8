"""Counts the processors that this process may use: by its affinity, and by the quotas of its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from leasehold.core.assignment.cpu_load import quota_v1, quota_v2
from leasehold.core.supervision.process_count import usable_cpus


def count_usable_cpus(root: Path = Path("/")) -> int:
    """The number of processors, at least one."""
    return usable_cpus(_count_allowed(), min(_quotas(root), default=None))


def _count_allowed() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """The quotas of our control group and of those above it. Inside a container the topmost one is the container's."""
    top = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, path = line.partition("::")
        if number == "0":
            own = top / path.lstrip("/")
            folders = [own, *own.parents]
            yield from _known(
                quota_v2(_read(each / "cpu.max")) for each in folders if each.is_relative_to(top)
            )
    yield from _known([quota_v1(_read(top / "cpu/cpu.cfs_quota_us"), _read(top / "cpu/cpu.cfs_period_us"))])


def _known(quotas: Iterator[float | None] | list[float | None]) -> Iterator[float]:
    return (quota for quota in quotas if quota is not None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
