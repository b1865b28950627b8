"""Judges a run from what the workers wrote down: every promise, and for every repetition the fault that explains it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

# Spark does not finish the batch that it is in when it is stopped; whoever goes on with the lease does.
EXCUSES = frozenset({"killed", "paused", "lost a lease", "stopped in a batch"})


class Handled(NamedTuple):
    """One record in one call of a handler. Times are of the system's monotonic clock, the same for all processes."""

    at_ns: int
    worker: str
    token: str
    shard: str
    sequence: int
    sub_sequence: int
    number: int


@dataclass
class Verdict:
    """What a run showed. `problems` is empty if every promise was kept."""

    handled: int = 0
    repeated: int = 0
    repeated_because_of: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def read_logs(folder: Path) -> list[Handled]:
    """Everything that was handled, in the order of time. A line that a killed worker did not finish does not count."""
    found = []
    for path in sorted(folder.glob("*.handled")):
        for line in path.read_text().splitlines():
            parts = line.split()
            if len(parts) == 7 and parts[6] == "#":
                at_ns, worker, token, shard, place, number = parts[:6]
                sequence, sub_sequence = place.split("/")
                found.append(
                    Handled(int(at_ns), worker, token, shard, int(sequence), int(sub_sequence), int(number))
                )
    return sorted(found)


def judge(
    log: Iterable[Handled],
    *,
    produced: int,
    parents: Mapping[str, tuple[str, ...]],
    fates: Mapping[str, set[str]],
) -> Verdict:
    """Hold the log against the promises. `fates` tells what was done to each worker."""
    verdict = Verdict()
    records = list(log)
    _check_nothing_is_missing(records, produced, verdict)
    _check_order_within_ownership(records, verdict)
    _check_parents_first(records, parents, verdict)
    _check_repetitions(records, fates, verdict)
    verdict.handled = len(records)
    return verdict


def _check_nothing_is_missing(records: list[Handled], produced: int, verdict: Verdict) -> None:
    missing = set(range(produced)) - {record.number for record in records}
    if missing:
        verdict.problems.append(
            f"{len(missing)} of {produced} records were never handled, e.g. {min(missing)}"
        )


def _check_order_within_ownership(records: list[Handled], verdict: Verdict) -> None:
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for record in records:
        place = (record.sequence, record.sub_sequence)
        ownership = (record.worker, record.token)
        if ownership in last and place <= last[ownership]:
            verdict.problems.append(f"{record.shard} went back within {record.token} of {record.worker}")
        last[ownership] = place


def _check_parents_first(
    records: list[Handled], parents: Mapping[str, tuple[str, ...]], verdict: Verdict
) -> None:
    """All records of a parent were handled, at least once, before any of its child."""
    first_time: dict[tuple[str, int, int], int] = {}
    for record in records:
        first_time.setdefault((record.shard, record.sequence, record.sub_sequence), record.at_ns)
    done: defaultdict[str, int] = defaultdict(int)
    begun: dict[str, int] = {}
    for (shard, _, _), at_ns in first_time.items():
        done[shard] = max(done[shard], at_ns)
        begun[shard] = min(begun.get(shard, at_ns), at_ns)
    for child, at_ns in begun.items():
        late = [parent for parent in parents.get(child, ()) if done[parent] > at_ns]
        verdict.problems += [f"{child} began before its parent {parent} was done" for parent in late]


def _check_repetitions(records: list[Handled], fates: Mapping[str, set[str]], verdict: Verdict) -> None:
    """A record is handled again only where an owner was killed, paused or starved; one handling may be by others."""
    seen: defaultdict[int, list[str]] = defaultdict(list)
    for record in records:
        seen[record.number].append(record.worker)
    unexplained: Counter[str] = Counter()
    for workers in seen.values():
        verdict.repeated += len(workers) - 1
        harmed = [fates.get(worker, set()) & EXCUSES for worker in workers]
        for fate in harmed:
            verdict.repeated_because_of.update(fate if len(workers) > 1 else ())
        unharmed = [worker for worker, fate in zip(workers, harmed, strict=True) if not fate]
        if len(unharmed) > 1:
            unexplained[" and ".join(sorted(set(unharmed)))] += 1
    verdict.problems += [
        f"{count} records were handled more than once by {workers}, to whom nothing had happened"
        for workers, count in unexplained.items()
    ]
