"""Finds and ends the processes that a process has started, from /proc on Linux, otherwise from ps."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A running process."""

    pid: int
    parent: int
    command: str


def list_processes() -> Iterator[Process]:
    """Yield the processes of this machine that this user can see."""
    if Path("/proc/self/stat").exists():
        for folder in Path("/proc").glob("[0-9]*"):
            # The name in parentheses may contain any character. The state and the parent follow it.
            fields = _read_text(folder / "stat").rpartition(")")[2].split()
            if len(fields) > 1:
                command = _read_text(folder / "cmdline").replace("\0", " ")
                yield Process(int(folder.name), int(fields[1]), command)
        return
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,args="],  # noqa: S607 - where it is differs between systems
        capture_output=True,
        text=True,
        check=False,
    )
    for line in listing.stdout.splitlines():
        pid, parent, command = f"{line.strip()}  ".split(None, 2) if len(line.split()) > 2 else ("0", "0", "")
        yield Process(int(pid), int(parent), command.strip())


def children(parent: int) -> list[Process]:
    """The processes that a process has started."""
    return [each for each in list_processes() if each.parent == parent]


def descendants(ancestor: int) -> list[Process]:
    """The processes that a process has started, those that they have started, and so on."""
    by_parent: defaultdict[int, list[Process]] = defaultdict(list)
    for each in list_processes():
        by_parent[each.parent].append(each)
    return list(_walk(ancestor, by_parent))


def _walk(parent: int, by_parent: Mapping[int, list[Process]]) -> Iterator[Process]:
    for child in by_parent.get(parent, ()):
        yield child
        yield from _walk(child.pid, by_parent)


def kill_with_descendants(pid: int) -> None:
    """Kill a process and all that descend from it. Those that have ended are no error."""
    # The list first: after the death of a process, its children have another parent.
    for each in [*(child.pid for child in descendants(pid)), pid]:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # the process has ended
