"""Finds lost leases and logged bugs in the logs of workers and of the pipeline."""

from collections import Counter
from pathlib import Path

from tests.chaos.accounting import Disruption

LEASE_LOST = "lease lost shard="
BUG = "a bug: "


def find_lost_leases(folder: Path) -> list[Disruption]:
    """Return the leases that workers have logged as lost. The log has the shard, but no comparable time."""
    found = []
    for path in folder.glob("*.log"):
        for line in path.read_text(errors="replace").splitlines():
            _, is_lost, rest = line.partition(LEASE_LOST)
            if is_lost:
                found.append(Disruption(path.stem, "its owner was cut off", shard=rest.split()[0]))
    return found


def find_logged_bugs(folder: Path) -> list[str]:
    """Return each different bug that a process has logged, with its count."""
    found: Counter[str] = Counter()
    for path in folder.glob("*/*.log"):
        lines = path.read_text(errors="replace").splitlines()
        found.update(line.partition(BUG)[2] for line in lines if BUG in line)
    return [f"a bug was logged {count} times: {bug}" for bug, count in found.items()]
