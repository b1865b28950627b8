"""Measures the CPU time and the memory of this process and of its descendants, from `/proc`."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SAMPLE_EVERY_S = 0.1


@dataclass(frozen=True)
class Process:
    """One process, as `/proc` shows it. `cpu_s` includes children that have ended, `own_cpu_s` does not."""

    pid: int
    parent: int
    command: bytes
    cpu_s: float
    own_cpu_s: float
    started: int  # in ticks; with the pid, it names the process for good

    @property
    def kind(self) -> str:
        """The part of a benchmark that the process belongs to."""
        if b"leasehold.cli\0local" in self.command:
            return "server"
        if b"org.apache.spark" in self.command or b"/java" in self.command.split(b"\0")[0]:
            return "JVM"
        if b"python_streaming_source_runner" in self.command:
            return "reader"
        return "Python" if b"pyspark" in self.command else "other"


def find_processes() -> Iterator[Process]:
    """Return every process of the machine."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:  # it has just ended
                continue
            yield Process(
                int(entry.name),
                int(fields[1]),
                command,
                sum(map(int, fields[11:15])) / TICKS_PER_S,
                sum(map(int, fields[11:13])) / TICKS_PER_S,
                int(fields[19]),
            )


def descendants(pid: int) -> list[Process]:
    """Return the processes below a process."""
    found = {process.pid: process for process in find_processes()}
    return [each for each in found.values() if _is_below(each.pid, pid, found)]


def _is_below(pid: int, ancestor: int, found: Mapping[int, Process]) -> bool:
    while pid in found:
        pid = found[pid].parent
        if pid == ancestor:
            return True
    return False


def cpu_by_kind() -> Mapping[str, float]:
    """Return the CPU seconds so far of this process and its descendants, ended ones included."""
    used: defaultdict[str, float] = defaultdict(float, client=time.process_time())
    for process in descendants(os.getpid()):
        used[process.kind] += process.cpu_s
    return used


class CpuMeter:
    """Adds up the CPU seconds of all descendants of this process, also of those that have ended.

    Spark's Python processes end within a query, and their parents do not always wait for them: then the kernel adds
    their time to no other process. So a thread reads `/proc` while the block runs, and the meter keeps what it saw last
    of each process. What a process uses in its last `SAMPLE_EVERY_S` may be missing.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], Process] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def cpu_by_kind(self) -> Mapping[str, float]:
        """The CPU seconds so far, by kind of process."""
        self._sample()
        used: defaultdict[str, float] = defaultdict(float)
        with self._lock:
            for process in self._seen.values():
                used[process.kind] += process.own_cpu_s
        return used

    def _run(self) -> None:
        while not self._end.wait(SAMPLE_EVERY_S):
            self._sample()

    def _sample(self) -> None:
        with self._lock:
            for each in descendants(os.getpid()):
                known = self._seen.get((each.pid, each.started), each)
                # A process that has ended, and that nobody has waited for, has no command any more.
                self._seen[each.pid, each.started] = replace(each, command=each.command or known.command)


def tree_cpu_s(pid: int) -> float:
    """Return the CPU time so far of a process and its descendants, ended ones included."""
    return sum(each.cpu_s for each in find_processes() if each.pid == pid) + sum(
        each.cpu_s for each in descendants(pid)
    )


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024
