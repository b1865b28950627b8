"""Decides how many worker processes to run."""

from __future__ import annotations

from typing import Final

from leasehold.errors import ConfigError

AUTO: Final = "auto"
PROCESSES_MAX: Final = 256


def parse_process_count(text: str) -> int | None:
    """The number of processes; None for `auto`.

    >>> parse_process_count("4"), parse_process_count("auto")
    (4, None)
    """
    if text.strip().lower() == AUTO:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= PROCESSES_MAX):
        raise ConfigError(f"{text!r:.50}: expected a number from 1 to {PROCESSES_MAX}, or {AUTO}")
    return int(text)


def usable_cpus(allowed: int, quota: float | None) -> int:
    """The processors that this process may use: those that the scheduler allows, within the quota of its control group.

    A quota of one and a half is one process: two would wait for each other's time.

    >>> usable_cpus(8, 2.5), usable_cpus(8, None), usable_cpus(8, 0.5)
    (2, 8, 1)
    """
    return max(1, allowed if quota is None else min(allowed, int(quota)))
