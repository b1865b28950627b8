"""Measures how busy this member is: in an ECS task, in a container with a limit, or on a whole machine.

A Python process uses at most one processor at a time, so the share of one processor that the process uses counts as
well. Otherwise a fully loaded member would look idle on a machine with many processors.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
import urllib3

from leasehold.core.assignment.cpu_load import (
    CpuReading,
    EcsShare,
    container_reading,
    cpus_in,
    ecs_percent,
    ecs_share,
    host_reading,
    percent_between,
    quota_v1,
    quota_v2,
    usage_v2_us,
)
from leasehold.ports import LoadMeter

ECS_VARIABLE: Final = "ECS_CONTAINER_METADATA_URI_V4"
# ECS serves its metadata at this address, to the task alone. No other host is contacted, because the variable may
# name any.
ECS_HOST: Final = ipaddress.ip_address("169.254.170.2")
ECS_RESPONSE_BYTES_MAX: Final = 1024 * 1024
ECS_TIMEOUT_S: Final = 2.0


def detect_load_meter(environment: Mapping[str, str], root: Path = Path("/")) -> LoadMeter | None:
    """The meter for this environment; None if nothing can be measured, as outside of Linux. Then only throughput is
    balanced.
    """
    process = ProcessMeter()
    if is_ecs_address(environment.get(ECS_VARIABLE, "")):
        return BusiestMeter(EcsMeter(environment[ECS_VARIABLE]), process)
    for reading in (_ControlGroup2(root), _ControlGroup1(root), _Host(root)):
        if reading() is not None:
            return BusiestMeter(KernelFileMeter(reading), process)
    return None


class BusiestMeter(LoadMeter):
    """The highest load of several meters."""

    def __init__(self, *meters: LoadMeter) -> None:
        self._meters = meters

    async def percent(self) -> float | None:
        """The highest known figure; None if the first meter, which is the main one, has none."""
        figures = [await meter.percent() for meter in self._meters]
        known = [figure for figure in figures if figure is not None]
        return max(known) if figures[0] is not None else None


class ProcessMeter(LoadMeter):
    """The share of one processor that this process uses."""

    def __init__(self) -> None:
        self._last: CpuReading | None = None

    async def percent(self) -> float | None:
        """Since the last call."""
        last, self._last = self._last, CpuReading(time.process_time(), time.monotonic())
        return percent_between(last, self._last)


class KernelFileMeter(LoadMeter):
    """Load from counter files of the kernel. They are read on the event loop, because they are in memory."""

    def __init__(self, reading: Callable[[], CpuReading | None]) -> None:
        self._reading = reading
        self._last: CpuReading | None = None

    async def percent(self) -> float | None:
        """Since the last call. The limits are read every time, because they may change."""
        last, self._last = self._last, self._reading()
        return percent_between(last, self._last)


class EcsMeter(LoadMeter):
    """Load from the task metadata of ECS."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")
        self._pool = urllib3.PoolManager(maxsize=1, retries=False, timeout=ECS_TIMEOUT_S)
        self._share: EcsShare | None = None

    async def percent(self) -> float | None:
        """Over about the last second: each response holds two readings."""
        return await asyncio.to_thread(self._percent)

    def _percent(self) -> float | None:
        if self._share is None:
            task, container = self._get("/task"), self._get("")
            if task is None or container is None:
                return None
            self._share = ecs_share(task, container)
        stats = self._get("/stats")
        return None if stats is None else ecs_percent(stats, self._share)

    def _get(self, path: str) -> Any:
        try:
            response = self._pool.request("GET", self._address + path, redirect=False, preload_content=False)
            try:
                content = response.read(ECS_RESPONSE_BYTES_MAX)
            finally:
                response.release_conn()
            return orjson.loads(content) if response.status == 200 else None
        except (urllib3.exceptions.HTTPError, ValueError):
            return None


def is_ecs_address(address: str) -> bool:
    """Whether an address is that of the ECS task metadata. No other address is contacted.

    >>> is_ecs_address("http://169.254.170.2/v4/0123"), is_ecs_address("http://example.com/v4/0123")
    (True, False)
    """
    try:
        parts = urlsplit(address)
        host, port = ipaddress.ip_address(parts.hostname or ""), parts.port
    except ValueError:
        return False
    return parts.scheme == "http" and host == ECS_HOST and port in {None, 80} and parts.username is None


class _Host:
    """The whole machine."""

    def __init__(self, root: Path) -> None:
        self._file = root / "proc/stat"

    def __call__(self) -> CpuReading | None:
        text = _read(self._file)
        return None if text is None else host_reading(text)


class _ControlGroup2:
    """A container with a limit, on a kernel with control groups of version 2."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "sys/fs/cgroup"

    def __call__(self) -> CpuReading | None:
        most, stat = _read(self._folder / "cpu.max"), _read(self._folder / "cpu.stat")
        if most is None or stat is None:
            return None
        processors = quota_v2(most) or cpus_in(_read(self._folder / "cpuset.cpus.effective") or "")
        return container_reading(usage_v2_us(stat), processors, _now_ms())


class _ControlGroup1:
    """The same for control groups of version 1."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "sys/fs/cgroup"

    def __call__(self) -> CpuReading | None:
        used = _read(self._folder / "cpu/cpuacct.usage")
        quota, period = (
            _read(self._folder / "cpu/cpu.cfs_quota_us"),
            _read(self._folder / "cpu/cpu.cfs_period_us"),
        )
        if used is None or not used.strip().isdigit() or quota is None or period is None:
            return None
        cpuset = _read(self._folder / "cpuset/cpuset.effective_cpus") or ""
        return container_reading(int(used) / 1000, quota_v1(quota, period) or cpus_in(cpuset), _now_ms())


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
