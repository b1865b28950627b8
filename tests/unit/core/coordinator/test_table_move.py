"""Who should lead a fleet that could move from three tables to one."""

from dataclasses import replace

import pytest

from leasehold.core.coordinator.table_move import STABLE_FOR_MS, is_java_preferred, may_move
from leasehold.core.coordinator.worker_metrics import WorkerReport
from leasehold.core.leases.lease_row import lease_from_row
from leasehold.core.leases.row_writes import Row
from leasehold.core.model import Lease, WorkerId

NOW_S = 1000


def lease(owner: str | None) -> Lease:
    """A lease of nobody, of Java, or of one of ours, who leave the id of their holding."""
    row: Row = {
        "leaseKey": {"S": "shardId-0"},
        "leaseCounter": {"N": "1"},
        "checkpoint": {"S": "TRIM_HORIZON"},
        "checkpointSubSequenceNumber": {"N": "0"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        **({} if owner is None else {"leaseOwner": {"S": owner}}),
        **({"leaseholdSession": {"S": "h"}} if owner == "ours" else {}),
    }
    return lease_from_row(row)


def report(worker: str, support: int | None, age_s: int = 0) -> WorkerReport:
    """What a worker told so many seconds ago."""
    return WorkerReport(worker=WorkerId(worker), updated_s=NOW_S - age_s, support=support)


@pytest.mark.parametrize(
    ("owners", "reports", "expected"),
    [
        (["ours", "java"], [report("ours", 1), report("java", 1)], True),
        (["ours", "java", None], [report("ours", 1), report("java", 1)], True),
        (["ours"], [report("ours", 1)], False),
        (["ours", "java"], [report("ours", 1), report("java", None)], False),
        (["ours", "java"], [report("ours", 1), report("java", 1, age_s=60)], False),
        (["ours", "java"], [report("ours", 1)], False),
        ([], [], False),
    ],
    ids=["KCL 3.5", "a free lease", "only ours", "KCL 3.4", "a dead Java", "a silent Java", "nobody"],
)
def test_a_fleet_could_move_if_all_understand_one_table(
    owners: list[str | None], reports: list[WorkerReport], expected: bool
) -> None:
    """Every owner says so, and one of them is a Java member, which alone can move the tables."""
    assert may_move([lease(owner) for owner in owners], reports, NOW_S) is expected


def test_a_moment_does_not_count() -> None:
    """A lease that was just given to one of ours looks like Java's; a leader does not resign for that."""
    assert not is_java_preferred(None, 10 * STABLE_FOR_MS)
    assert not is_java_preferred(1, STABLE_FOR_MS)
    assert is_java_preferred(1, 1 + STABLE_FOR_MS)


def test_a_java_member_that_took_a_lease_from_us_is_one_still() -> None:
    """Java leaves the id of our holding where it is; another lease of the same owner tells."""
    taken, its_own = replace(lease("ours"), owner=WorkerId("java")), lease("java")
    assert may_move([taken, its_own, lease("ours")], [report("ours", 1), report("java", 1)], NOW_S)
