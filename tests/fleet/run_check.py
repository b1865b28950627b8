"""Checks a run by the logs of its workers: every promise, and the fault that explains each repeated record."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

# A stopped Spark query does not finish its running batch. The next owner of the lease does.
REPEAT_CAUSES = frozenset({"killed", "paused", "lost a lease", "stopped in a batch", "reset"})


class Handled(NamedTuple):
    """One record in one call of a handler. All processes use the system's monotonic clock."""

    at_ns: int
    worker: str
    fencing_token: str
    shard: str
    sequence: int
    sub_sequence: int
    number: int


@dataclass
class RunCheck:
    """The result. `problems` is empty if every promise was kept."""

    handled: int = 0
    repeated: int = 0
    repeat_causes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def read_logs(folder: Path) -> list[Handled]:
    """Return all handled records in the order of time. Ignores a line that a killed worker did not finish."""
    found = []
    for path in sorted(folder.glob("*.handled")):
        for line in path.read_text().splitlines():
            parts = line.split()
            if len(parts) == 7 and parts[6] == "#":
                at_ns, worker, fencing_token, shard, position, number = parts[:6]
                sequence, sub_sequence = position.split("/")
                found.append(
                    Handled(
                        int(at_ns),
                        worker,
                        fencing_token,
                        shard,
                        int(sequence),
                        int(sub_sequence),
                        int(number),
                    )
                )
    return sorted(found)


def check_run(
    log: Iterable[Handled],
    *,
    produced: int,
    parents: Mapping[str, tuple[str, ...]],
    faults_by_worker: Mapping[str, set[str]],
) -> RunCheck:
    """Compare the log with the promises. `faults_by_worker` are the faults that were injected into each worker."""
    check = RunCheck()
    records = list(log)
    _check_nothing_is_missing(records, produced, check)
    _check_order_within_session(records, check)
    _check_parents_first(records, parents, check)
    _check_repeats(records, faults_by_worker, check)
    check.handled = len(records)
    return check


def _check_nothing_is_missing(records: list[Handled], produced: int, check: RunCheck) -> None:
    missing = set(range(produced)) - {record.number for record in records}
    if missing:
        check.problems.append(f"{len(missing)} of {produced} records were never handled, e.g. {min(missing)}")


def _check_order_within_session(records: list[Handled], check: RunCheck) -> None:
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for record in records:
        position = (record.sequence, record.sub_sequence)
        session = (record.worker, record.fencing_token)
        if session in last and position <= last[session]:
            check.problems.append(
                f"{record.shard} moved backwards within {record.fencing_token} of {record.worker}"
            )
        last[session] = position


def _check_parents_first(
    records: list[Handled], parents: Mapping[str, tuple[str, ...]], check: RunCheck
) -> None:
    """All records of a parent were handled, at least once, before any record of its child."""
    first_time: dict[tuple[str, int, int], int] = {}
    for record in records:
        first_time.setdefault((record.shard, record.sequence, record.sub_sequence), record.at_ns)
    done: defaultdict[str, int] = defaultdict(int)
    started: dict[str, int] = {}
    for (shard, _, _), at_ns in first_time.items():
        done[shard] = max(done[shard], at_ns)
        started[shard] = min(started.get(shard, at_ns), at_ns)
    for child, at_ns in started.items():
        late = [parent for parent in parents.get(child, ()) if done[parent] > at_ns]
        check.problems += [f"{child} started before its parent {parent} was done" for parent in late]


def _check_repeats(records: list[Handled], faults_by_worker: Mapping[str, set[str]], check: RunCheck) -> None:
    """At most one of the workers that handled a record had no fault that explains a repetition."""
    seen: defaultdict[int, list[str]] = defaultdict(list)
    for record in records:
        seen[record.number].append(record.worker)
    unexplained: Counter[str] = Counter()
    for workers in seen.values():
        check.repeated += len(workers) - 1
        causes = [faults_by_worker.get(worker, set()) & REPEAT_CAUSES for worker in workers]
        for cause in causes:
            check.repeat_causes.update(cause if len(workers) > 1 else ())
        without_cause = [worker for worker, cause in zip(workers, causes, strict=True) if not cause]
        if len(without_cause) > 1:
            unexplained[" and ".join(sorted(set(without_cause)))] += 1
    check.problems += [
        f"{count} records were handled more than once by {workers}, which had no fault"
        for workers, count in unexplained.items()
    ]
