"""An upgrade from KCL 2.x: who decides that it is done, when it is, and what is written then."""

import pytest

from leasehold.core.coordinator.upgrade import (
    READY_FOR_MS,
    enable_leader,
    is_ready_for_leader,
    may_enable_leader,
    next_ready_since,
    upgrade_decider,
)
from leasehold.core.coordinator.worker_metrics import WorkerReport
from leasehold.core.leases.lease_row import lease_from_row
from leasehold.core.leases.row_writes import Row, may_apply, next_row
from leasehold.core.model import Lease, WorkerId

UPGRADING: Row = {
    "leaseKey": {"S": "Migration3.0"},
    "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
    "cv": {"S": "CLIENT_VERSION_UPGRADE_FROM_2X"},
    "mb": {"S": "java-1"},
    "mts": {"N": "1790000000123"},
    "h": {"L": [{"M": {"cv": {"S": "CLIENT_VERSION_INIT"}, "mb": {"S": "java-1"}, "mts": {"N": "1"}}}]},
}


def lease(owner: str | None) -> Lease:
    """A lease of somebody, or of nobody."""
    row: Row = {
        "leaseKey": {"S": "shardId-0"},
        "leaseCounter": {"N": "1"},
        "checkpoint": {"S": "TRIM_HORIZON"},
        "checkpointSubSequenceNumber": {"N": "0"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
    }
    return lease_from_row(row if owner is None else {**row, "leaseOwner": {"S": owner}})


def report(worker: str, updated_s: int) -> WorkerReport:
    """What a worker last told of itself."""
    return WorkerReport(worker=WorkerId(worker), updated_s=updated_s)


@pytest.mark.parametrize(
    ("workers", "decider"), [(1, "w00"), (3, "w02"), (5, "w04"), (8, "w02"), (10, "w08")]
)
def test_the_decider_is_whom_java_would_choose(workers: int, decider: str) -> None:
    """The first after a shuffle by Java's random numbers, as seen on a JVM, whatever the order of the leases."""
    names = [WorkerId(f"w{number:02d}") for number in range(workers)]
    assert upgrade_decider([*reversed(names), *names]) == decider


def test_names_are_ordered_as_java_orders_them() -> None:
    """By UTF-16 units: a character beyond the first plane comes before the last ones of it."""
    beyond, late = WorkerId("\U0001f600"), WorkerId("\uff5e")
    first_of_two = upgrade_decider([WorkerId("a"), WorkerId("b")]) == "a"
    assert upgrade_decider([beyond, late]) == (beyond if first_of_two else late)


def test_nobody_decides_where_nobody_owns_anything() -> None:
    """Without owners there is nobody to choose."""
    assert upgrade_decider([]) is None


@pytest.mark.parametrize(
    ("owners", "reported", "has_index", "ready"),
    [
        (["a", "b"], {"a": 1000, "b": 1000}, True, True),
        (["a", "b"], {"a": 941, "b": 1000}, True, True),
        (["a", "b"], {"a": 940, "b": 1000}, True, False),
        (["a", "b"], {"b": 1000}, True, False),
        (["a", None], {"a": 1000}, True, False),
        (["a"], {"a": 1000}, False, False),
    ],
    ids=["ready", "just in time", "silent for a minute", "an owner on 2.x", "a free lease", "no index"],
)
def test_a_fleet_is_ready_when_every_owner_reports(
    owners: list[str | None], reported: dict[str, int], has_index: bool, ready: bool
) -> None:
    """Java's conditions at 1000 s: an index, an owner for every lease, and a fresh report of every owner."""
    reports = [report(worker, updated_s) for worker, updated_s in reported.items()]
    assert (
        is_ready_for_leader([lease(owner) for owner in owners], reports, 1000, has_index=has_index) is ready
    )


def test_ten_minutes_count_without_a_break() -> None:
    """A fleet that is not ready for a moment begins anew."""
    since_ms = next_ready_since(None, 5_000, ready=True)
    assert next_ready_since(since_ms, 65_000, ready=True) == 5_000
    assert not may_enable_leader(since_ms, 5_000 + READY_FOR_MS - 1)
    assert may_enable_leader(since_ms, 5_000 + READY_FOR_MS)
    since_ms = next_ready_since(since_ms, 125_000, ready=False)
    assert not may_enable_leader(since_ms, 10 * READY_FOR_MS)


def test_the_change_over_is_written_as_java_writes_it() -> None:
    """A leader from now on, who said so and when; what the row said before is the newest of its history."""
    after = next_row(enable_leader(UPGRADING, WorkerId("python-2"), 1790000600000), UPGRADING)
    assert after == {
        **UPGRADING,
        "cv": {"S": "CLIENT_VERSION_3X_WITH_ROLLBACK"},
        "mb": {"S": "python-2"},
        "mts": {"N": "1790000600000"},
        "h": {
            "L": [
                {"M": {name: UPGRADING[name] for name in ("cv", "mb", "mts")}},
                *UPGRADING["h"]["L"],
            ]
        },
    }


def test_an_upgrade_that_was_called_off_is_not_finished() -> None:
    """The operator may have rolled back a moment ago; then nothing is written."""
    rolled_back = {**UPGRADING, "cv": {"S": "CLIENT_VERSION_2X"}}
    assert not may_apply(enable_leader(UPGRADING, WorkerId("python-2"), 1), rolled_back)


def test_a_history_stays_short() -> None:
    """Java keeps ten entries, and so do we."""
    entry = UPGRADING["h"]["L"][0]
    after = next_row(enable_leader({**UPGRADING, "h": {"L": [entry] * 10}}, WorkerId("p"), 1), UPGRADING)
    assert after is not None
    assert len(after["h"]["L"]) == 10
