"""Processor utilisation in percent, from the files of Linux and the task metadata of ECS. Parses; reads no file.

A figure is the difference of two readings. The first reading gives None (the KCL reports 0 then, and so seems idle).
Invalid readings also give None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_RANGES: Final = re.compile(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*")


@dataclass(frozen=True, slots=True)
class CpuReading:
    """Two counters in the same unit: processor time used, and processor time available."""

    busy: float
    available: float


def percent_between(before: CpuReading | None, now: CpuReading | None) -> float | None:
    """The share of the available time that was used between two readings; None if unknown.

    >>> percent_between(CpuReading(10, 100), CpuReading(60, 200)), percent_between(None, CpuReading(1, 2))
    (50.0, None)
    """
    if before is None or now is None or now.available <= before.available or now.busy < before.busy:
        return None
    return min(100.0, 100 * (now.busy - before.busy) / (now.available - before.available))


def host_reading(proc_stat: str) -> CpuReading | None:
    """The whole machine, from /proc/stat: user, nice, system, idle, iowait. As in the KCL, iowait counts as busy.

    >>> host_reading("cpu  20000 200 2000 1500000 1000 0 0 0")
    CpuReading(busy=23200.0, available=1523200.0)
    """
    fields = proc_stat.split("\n", 1)[0].split()
    if len(fields) < 6 or fields[0] != "cpu" or not all(field.isdigit() for field in fields[1:6]):
        return None
    user, nice, system, idle, iowait = map(int, fields[1:6])
    busy = user + nice + system + iowait
    return CpuReading(float(busy), float(busy + idle))


def cpus_in(cpuset: str) -> int | None:
    """The number of processors in a cpuset list.

    >>> cpus_in("0-4,6,8-10"), cpus_in("junk")
    (9, None)
    """
    if not _RANGES.fullmatch(cpuset.strip()):
        return None
    total = 0
    for part in cpuset.strip().split(","):
        first, _, last = part.partition("-")
        total += max(0, int(last or first) - int(first) + 1)
    return total or None


def quota_v2(cpu_max: str) -> float | None:
    """The number of processors that a container may use, from cpu.max; None without a limit.

    >>> quota_v2("150000 100000"), quota_v2("max 100000")
    (1.5, None)
    """
    fields = cpu_max.split()
    if len(fields) != 2 or not all(field.isdigit() and int(field) > 0 for field in fields):
        return None
    return int(fields[0]) / int(fields[1])


def quota_v1(quota_us: str, period_us: str) -> float | None:
    """The same from cpu.cfs_quota_us and cpu.cfs_period_us, where -1 means no limit."""
    return quota_v2(f"{quota_us.strip()} {period_us.strip()}")


def usage_v2_us(cpu_stat: str) -> int | None:
    """The processor time of a container, from cpu.stat.

    >>> usage_v2_us("usage_usec 1500000 user_usec 7")
    1500000
    """
    fields = cpu_stat.split()
    return (
        int(fields[1]) if fields[:1] == ["usage_usec"] and len(fields) > 1 and fields[1].isdigit() else None
    )


def container_reading(used_us: float | None, processors: float | None, now_ms: int) -> CpuReading | None:
    """The reading of a container that may use this many processors. `now_ms` is monotonic time."""
    if used_us is None or not processors:
        return None
    return CpuReading(used_us, now_ms * 1000 * processors)


@dataclass(frozen=True, slots=True)
class EcsShare:
    """The processors of an ECS task, and the part that belongs to our container."""

    processors: float | None
    part: float


def ecs_share(task: Any, container: Any) -> EcsShare:
    """What a container of an ECS task may use, from the task metadata. A missing figure means no limit."""
    own_id = _member(container, "DockerId")
    containers = _member(task, "Containers")
    listed = containers if isinstance(containers, list) else []
    shares = {_member(each, "DockerId"): _number(_member(each, "Limits"), "CPU") or 0.0 for each in listed}
    total = sum(shares.values())
    part = shares.get(own_id, 0.0) / total if total else 1.0
    return EcsShare(_number(_member(task, "Limits"), "CPU"), part or 1.0)


def ecs_percent(stats: Any, share: EcsShare) -> float | None:
    """The utilisation of a container of an ECS task. Its stats contain two readings."""
    now, before = _member(stats, "cpu_stats"), _member(stats, "precpu_stats")
    used = _difference(
        _number(_member(now, "cpu_usage"), "total_usage"),
        _number(_member(before, "cpu_usage"), "total_usage"),
    )
    passed = _difference(_number(now, "system_cpu_usage"), _number(before, "system_cpu_usage"))
    online = _number(now, "online_cpus")
    if used is None or not passed or not online:
        return None
    limit = share.part * (share.processors or online)
    return min(100.0, 100 * used / passed * online / limit)


def _difference(now: float | None, before: float | None) -> float | None:
    """None if a reading is missing, or if it is the first one."""
    if now is None or not before or now < before:
        return None
    return now - before


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def _number(value: Any, name: str) -> float | None:
    found = _member(value, name)
    return (
        float(found)
        if isinstance(found, int | float) and not isinstance(found, bool) and found >= 0
        else None
    )
