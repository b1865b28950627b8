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


SURVIVORS = frozenset({Outcome.SURVIVED, Outcome.NOT_COVERED})


def run_in_child(
    check: Callable[[], int], *, cpu_s: float, deadline_s: float, shows_output: bool = False
) -> int:
    """The exit code that a check returns in a fork. A crash, or too much time, is a failure."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _run_child(check, int(cpu_s) + 1, shows_output=shows_output)
    return _wait(child, deadline_s)


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


def _wait(child: int, deadline_s: float) -> int:
    until = time.monotonic() + deadline_s
    pause = 0.001
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return FAILED
