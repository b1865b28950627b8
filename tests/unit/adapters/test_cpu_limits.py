"""Counting the processors that this process may use, from the files of control groups."""

import os
from pathlib import Path

import pytest

from leasehold.adapters.cpu_limits import count_usable_cpus


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scheduler allow eight processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    """As on macOS."""
    assert count_usable_cpus(tmp_path) == 8


def test_the_quota_of_a_container_counts(tmp_path: Path) -> None:
    """Version 2, with a namespace of its own: the container is at the top."""
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "250000 100000\n")
    assert count_usable_cpus(tmp_path) == 2


def test_the_lowest_quota_above_the_process_counts(tmp_path: Path) -> None:
    """Version 2, a service of systemd in a slice with a quota."""
    write(tmp_path, "proc/self/cgroup", "0::/a.slice/b.service\n")
    write(tmp_path, "sys/fs/cgroup/a.slice/cpu.max", "300000 100000\n")
    write(tmp_path, "sys/fs/cgroup/a.slice/b.service/cpu.max", "max 100000\n")
    assert count_usable_cpus(tmp_path) == 3


def test_the_quota_of_version_1_counts(tmp_path: Path) -> None:
    """-1 means no limit."""
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert count_usable_cpus(tmp_path) == 4
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    assert count_usable_cpus(tmp_path) == 8
