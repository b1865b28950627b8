"""The load of a member, from the kernel's counters and from ECS. Without data there is no figure."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from leasehold.adapters import cpu
from leasehold.adapters.cpu import EcsMeter, detect_load_meter, is_ecs_address
from leasehold.core.assignment.cpu_load import (
    EcsShare,
    container_reading,
    ecs_percent,
    ecs_share,
    host_reading,
    percent_between,
    quota_v1,
)


def test_the_load_of_the_whole_machine() -> None:
    """The difference of two readings of /proc/stat; a counter that goes backwards gives no figure."""
    first = host_reading("cpu  20000 200 2000 1500000 1000 0 0\ncpu0 1 2 3")
    then = host_reading("cpu  30000 3000 30000 2000000 2000 0 0")
    assert percent_between(first, then) == pytest.approx(7.715, abs=0.001)
    assert percent_between(then, first) is None
    assert percent_between(first, first) is None


@pytest.mark.parametrize("text", ["", "cpu", "cpu a b c d e", "intr 1 2 3 4 5"])
def test_unreadable_counters_give_no_figure(text: str) -> None:
    """No figure is guessed."""
    assert host_reading(text) is None


@pytest.mark.parametrize(("processors", "percent"), [(2.0, 25.0), (8.0, 6.25), (0.25, 100.0)])
def test_a_container_is_measured_against_its_limit(processors: float, percent: float) -> None:
    """Half a second of processor time per second; never above 100."""
    first, then = (
        container_reading(1_000_000, processors, 1000),
        container_reading(1_500_000, processors, 2000),
    )
    assert percent_between(first, then) == percent


def test_a_container_that_used_no_processor_time_is_idle() -> None:
    """Its counter stands still while it waits. That is a figure; a counter that goes backwards gives none."""
    first, then = container_reading(1_000_000, 2.0, 1000), container_reading(1_000_000, 2.0, 2000)
    assert percent_between(first, then) == 0.0
    assert percent_between(first, container_reading(999_999, 2.0, 2000)) is None


def test_minus_one_means_no_quota() -> None:
    """The kernel writes -1 for no limit."""
    assert quota_v1("-1\n", "100000\n") is None
    assert quota_v1("50000\n", "100000\n") == 0.5


STATS: dict[str, Any] = {
    "cpu_stats": {"cpu_usage": {"total_usage": 150}, "system_cpu_usage": 1100, "online_cpus": 2},
    "precpu_stats": {"cpu_usage": {"total_usage": 100}, "system_cpu_usage": 1000},
}


@pytest.mark.parametrize(
    ("share", "percent"),
    [
        (EcsShare(None, 1.0), 50),
        (EcsShare(None, 50 / 80), 80),
        (EcsShare(4.0, 1.0), 25),
        (EcsShare(0.1, 1.0), 100),
    ],
)
def test_the_load_of_an_ecs_container(share: EcsShare, percent: float) -> None:
    """The worked examples of the specification."""
    assert ecs_percent(STATS, share) == pytest.approx(percent)


@pytest.mark.parametrize(
    "stats", [None, [], {}, {**STATS, "precpu_stats": {}}, {**STATS, "cpu_stats": {"online_cpus": "2"}}]
)
def test_incomplete_stats_give_no_figure(stats: Any) -> None:
    """The first response for a container has only one reading; a broken one has none."""
    assert ecs_percent(stats, EcsShare(None, 1.0)) is None


def test_the_share_of_a_container_in_its_task() -> None:
    """By the limits of all containers; without limits, the whole task."""
    task = {
        "Limits": {"CPU": 4},
        "Containers": [{"DockerId": "a", "Limits": {"CPU": 50}}, {"DockerId": "b", "Limits": {"CPU": 30}}],
    }
    assert ecs_share(task, {"DockerId": "a"}) == EcsShare(4.0, 50 / 80)
    assert ecs_share(task, {"DockerId": "x"}) == EcsShare(4.0, 1.0)
    assert ecs_share({}, {}) == EcsShare(None, 1.0)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "http://example.com/v4/1",
        "https://169.254.170.2/v4/1",
        "http://169.254.170.2.example.com/v4/1",
        "http://169.254.170.2:8080/v4/1",
        "http://user@169.254.170.2/v4/1",
        "http://169.254.169.254/latest",
        "file:///etc/passwd",
        "http://[",
    ],
)
def test_no_other_address_is_contacted(address: str, tmp_path: Path) -> None:
    """An environment variable cannot direct our requests to another host."""
    assert not is_ecs_address(address)
    assert detect_load_meter({"ECS_CONTAINER_METADATA_URI_V4": address}, tmp_path) is None


def test_unavailable_metadata_gives_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member is balanced by throughput until the metadata are available again."""
    responses: dict[str, Any] = {}
    meter = EcsMeter("http://169.254.170.2/v4/1")
    monkeypatch.setattr(meter, "_get", responses.get)
    assert asyncio.run(meter.percent()) is None
    responses |= {"/task": {}, "": {}, "/stats": STATS}
    assert asyncio.run(meter.percent()) == 50


def test_the_meter_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's limit takes precedence over the whole machine; the second reading gives the first figure."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu  1 1 1 1 1")
    assert detect_load_meter({}, tmp_path) is not None
    cgroup = tmp_path / "sys/fs/cgroup"
    cgroup.mkdir(parents=True)
    (cgroup / "cpu.max").write_text("max 100000")
    (cgroup / "cpuset.cpus.effective").write_text("0-7")
    (cgroup / "cpu.stat").write_text("usage_usec 1000000\n")
    times_ms = iter([0, 1_000, 2_000])
    monkeypatch.setattr(cpu, "_now_ms", lambda: next(times_ms))
    meter = detect_load_meter({}, tmp_path)
    assert meter is not None

    async def figures() -> list[float | None]:
        first = await meter.percent()
        (cgroup / "cpu.stat").write_text("usage_usec 5000000\n")
        return [first, await meter.percent()]

    first, second = asyncio.run(figures())
    assert first is None
    assert second is not None
    assert second >= 50


def test_control_groups_of_version_1_are_read(tmp_path: Path) -> None:
    """Version 1 has other files, and counts nanoseconds."""
    for name, text in {
        "cpu/cpuacct.usage": "1000",
        "cpu/cpu.cfs_quota_us": "-1",
        "cpu/cpu.cfs_period_us": "100000",
    }.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert detect_load_meter({}, tmp_path) is None
    (tmp_path / "sys/fs/cgroup/cpuset").mkdir()
    (tmp_path / "sys/fs/cgroup/cpuset/cpuset.effective_cpus").write_text("0-3")
    assert detect_load_meter({}, tmp_path) is not None
