"""Tries one mutant in a child process that can be ended: it may loop for ever or wait for ever."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from enum import Enum
from pathlib import Path

# Exit codes of a child.
PASSED = 0
FAILED = 1
CANNOT_REPLACE = 3


class Outcome(Enum):
    """What happened to a mutant."""

    CAUGHT = "caught by tests"
    CAUGHT_BY_SIMULATOR = "caught by the simulator"
    SURVIVED = "SURVIVED"
    NOT_COVERED = "SURVIVED, no quick test executes it"


# A process that used no more than these hundredths of a second of the processor in this time waits for ever.
IDLE_MAX_S = 90.0
IDLE_TICKS_MAX = 5
SURVIVORS = frozenset({Outcome.SURVIVED, Outcome.NOT_COVERED})


def run_in_child(
    check: Callable[[], int],
    *,
    cpu_s: float,
    deadline_s: float,
    idle_max_s: float = IDLE_MAX_S,
    shows_output: bool = False,
) -> int:
    """The exit code that a check returns in a fork. A crash, too much time, or a long wait, is a failure."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _run_child(check, int(cpu_s) + 1, shows_output=shows_output)
    return _wait(child, deadline_s, idle_max_s)


def _run_child(check: Callable[[], int], cpu_s: int, *, shows_output: bool) -> None:
    code = FAILED
    try:
        os.setpgid(0, 0)  # with the processes that tests start
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        if not shows_output:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
        code = check()
    except BaseException:  # noqa: BLE001 - a fork must never return into the code of its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _wait(child: int, deadline_s: float, idle_max_s: float) -> int:
    until = time.monotonic() + deadline_s
    pause, worked = 0.001, _Worked(child, idle_max_s)
    while time.monotonic() < until and not worked.is_long_ago():
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return FAILED


class _Worked:
    """When a process, or a child of it that has ended, last used the processor. A mutant may wait for ever."""

    def __init__(self, process: int, idle_max_s: float) -> None:
        self._idle_max_s = idle_max_s
        self._stat = Path(f"/proc/{process}/stat")
        self._ticks = 0
        self._at_s = self._checked_s = time.monotonic()

    def is_long_ago(self) -> bool:
        """Whether nothing was done for a while. False where the system does not say."""
        now_s = time.monotonic()
        if now_s - self._checked_s < self._idle_max_s / 10:
            return False
        self._checked_s = now_s
        try:
            fields = self._stat.read_text().rpartition(")")[2].split()
        except OSError:
            return False
        ticks = sum(
            map(int, fields[11:15])
        )  # its own time and that of ended children, each of user and system
        if ticks - self._ticks > IDLE_TICKS_MAX:
            self._ticks, self._at_s = ticks, now_s
        return now_s - self._at_s > self._idle_max_s
