"""Writes what a child prints into the log: its standard error, and lines of its standard output that are no messages.

The text is the child's own. It is escaped, truncated and limited in rate, so that a child can neither forge lines nor
fill a disk. A line that repeats what the daemon sent may contain records, and is only counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

LOGGER: Final = logging.getLogger("leasehold.multilang.child")

TEXT_LENGTH_MAX: Final = 1_000
# A child may write this many lines into the log in each period.
LINES_MAX: Final = 200
PERIOD_S: Final = 5.0


class ChildOutput:
    """Logs the output of one child."""

    def __init__(self, name: str, now_s: Callable[[], float]) -> None:
        self._name = name
        self._now_s = now_s
        self._period_began_s = now_s()
        self._lines = 0
        self._dropped = 0

    def log(self, source: str, text: str) -> None:
        """Log one line of the child, unless it has written too many."""
        now_s = self._now_s()
        if now_s - self._period_began_s >= PERIOD_S:
            self.report_dropped()
            self._period_began_s, self._lines = now_s, 0
        if self._lines >= LINES_MAX:
            self._dropped += 1
            return
        self._lines += 1
        LOGGER.info("%s %s: %s", self._name, source, printable(text))

    def report_dropped(self) -> None:
        """Log how many lines were left out since the last report, if any were."""
        if self._dropped:
            LOGGER.warning(
                "%s: %d lines were left out, because it prints too much", self._name, self._dropped
            )
            self._dropped = 0


def printable(text: str) -> str:
    r"""Return a text as one line that a terminal can show.

    >>> printable("one\x1b[2J line")
    'one\\x1b[2J line'
    """
    shown = text[:TEXT_LENGTH_MAX]
    if not shown.isprintable():
        shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in shown)
    return f"{shown} ... ({len(text)} characters)" if len(text) > TEXT_LENGTH_MAX else shown
