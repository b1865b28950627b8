"""Decides what follows when a worker process of a supervisor ends: restart it after a wait, or stop all of them.

A crash is cured by a restart more often than not, so a crashed process is restarted for ever, with growing waits. An
error that the process explained in a sentence (a wrong setting, a poison record with `on_poison="stop_worker"`) comes
back at once after a restart, so all processes stop. So does a process that ends again and again before it has opened
its connections: it has never worked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leasehold.core.backoff import backoff_ms

# The exit codes with which a worker process says that a restart does not help: a wrong use of the command (click's),
# and an error that was explained in a sentence (EX_CONFIG of sysexits.h).
USAGE_CODE: Final = 2
EXPLAINED_CODE: Final = 78
NOT_STARTED_CODE: Final = 71  # the operating system did not start it (EX_OSERR of sysexits.h)
STABLE_AFTER_MS: Final = 60_000  # a process that ran for so long begins with a short wait again
FIRST_WAIT_MS: Final = 1_000
WAIT_MS_MAX: Final = 60_000
FAILED_STARTS_MAX: Final = 5
_SIGTERM: Final = 15


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended. A negative code is the number of a signal."""

    code: int
    ran_ms: int
    has_connected: bool  # it had opened its connections, so its settings were right
    sentence: str | None = None  # the explanation that the process gave

    def __str__(self) -> str:
        return f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


@dataclass(frozen=True, slots=True)
class RecentEnds:
    """The unexpected ends of one process in a row."""

    early: int = 0  # before it was stable
    failed_starts: int = 0  # before it had connected


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the process again after a wait."""

    wait_ms: int
    recent: RecentEnds


@dataclass(frozen=True, slots=True)
class Finished:
    """The process has done what it was asked to do."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop all processes: a restart would not help. The exit code of the supervisor is then 1."""

    reason: str


def decide_after_end(
    end: ProcessEnd, recent: RecentEnds, draw: float, *, is_stopping: bool
) -> Restart | Finished | GiveUp:
    """Decide what follows the end of a process. `draw` in [0, 1) randomizes the wait.

    >>> decide_after_end(ProcessEnd(-9, 90_000, True), RecentEnds(early=4), 0.5, is_stopping=False)
    Restart(wait_ms=500, recent=RecentEnds(early=1, failed_starts=0))
    >>> decide_after_end(ProcessEnd(78, 900, False, "no region is set"), RecentEnds(), 0.5, is_stopping=False)
    GiveUp(reason='no region is set')
    """
    # SIGTERM may reach a process before it can handle signals. One that had connected should have stopped cleanly.
    if end.code == 0 or (is_stopping and end.code == -_SIGTERM and not end.has_connected):
        return Finished()
    if end.sentence is not None:
        return GiveUp(end.sentence)
    if is_stopping:
        return GiveUp(f"it did not stop cleanly ({end}); its leases expire")
    if end.code in {USAGE_CODE, EXPLAINED_CODE}:
        return GiveUp(f"it ended with {end}, and a restart would not help: see its output")
    failed_starts = 0 if end.has_connected else recent.failed_starts + 1
    if failed_starts >= FAILED_STARTS_MAX:
        return GiveUp(
            f"it ended {failed_starts} times before it had connected, at last with {end}: see its output"
        )
    early = 1 if end.ran_ms >= STABLE_AFTER_MS else recent.early + 1
    wait_ms = backoff_ms(early - 1, draw, first_ms=FIRST_WAIT_MS, max_ms=WAIT_MS_MAX)
    return Restart(wait_ms, RecentEnds(early, failed_starts))
