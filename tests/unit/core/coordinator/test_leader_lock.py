"""The leader lock: one leader, replaced within one duration of its last heartbeat, whatever stands in the row."""

import pytest

from leasehold.core.coordinator.kcl_rows import LEADER_KEY
from leasehold.core.coordinator.leader_lock import (
    DURATION_MAX_MS,
    DURATION_MIN_MS,
    KCL_DURATION_MS,
    acquire,
    heartbeat,
    is_leader_late,
    lock_from_row,
    may_acquire,
    next_lock_observation,
    release,
)
from leasehold.core.leases.row_writes import Attribute, Row, may_apply, next_row, was_applied
from leasehold.core.model import WorkerId

ME, OTHER = WorkerId("me"), WorkerId("other")
JAVAS_ROW: Row = {
    "leaseKey": {"S": "Leader"},
    "entityType": {"S": "LEADER"},
    "ownerName": {"S": "other"},
    "leaseDuration": {"S": "120000"},
    "recordVersionNumber": {"S": "7f3c1a52-9a0e-4f7e-8d57-5f1b7f6c2a10"},
}


def test_the_row_is_the_kcls_in_both_layouts() -> None:
    """Java reads what we write: the same attributes and types, with the kind only where rows share a table.

    One more attribute says that this leader leaves word for its members.
    """
    ours = {"leaseholdNudgingLeader": {"S": "other"}}
    single = acquire(None, OTHER, "7f3c1a52-9a0e-4f7e-8d57-5f1b7f6c2a10", 120_000, "leaseKey")
    assert next_row(single, None) == {**JAVAS_ROW, **ours}
    own = acquire(None, OTHER, "7f3c1a52-9a0e-4f7e-8d57-5f1b7f6c2a10", 120_000, "key")
    rest = {name: value for name, value in JAVAS_ROW.items() if name not in {"leaseKey", "entityType"}}
    assert next_row(own, None) == {"key": {"S": "Leader"}, **rest, **ours}


def test_a_lock_is_taken_after_its_duration_without_a_new_version() -> None:
    """Exactly one duration after the last heartbeat was first seen, and not before."""
    lock = lock_from_row(JAVAS_ROW)
    watch = next_lock_observation(None, lock, 1_000)
    assert next_lock_observation(watch, lock, 50_000) == watch
    assert not may_acquire(lock, watch, 121_000)
    assert may_acquire(lock, watch, 121_001)


def test_a_heartbeat_starts_the_clock_anew() -> None:
    """A new version is a sign of life, whatever time has passed."""
    watch = next_lock_observation(None, lock_from_row(JAVAS_ROW), 0)
    beaten = lock_from_row({**JAVAS_ROW, "recordVersionNumber": {"S": "new"}})
    watch = next_lock_observation(watch, beaten, 119_000)
    assert not may_acquire(beaten, watch, 230_000)


def test_only_the_leader_who_said_so_leaves_word() -> None:
    """A Java leader that took the lock over, and left our attribute there, is not relied on."""
    assert not lock_from_row(JAVAS_ROW).sends_nudges
    assert lock_from_row({**JAVAS_ROW, "leaseholdNudgingLeader": {"S": "other"}}).sends_nudges
    assert not lock_from_row({**JAVAS_ROW, "leaseholdNudgingLeader": {"S": "me"}}).sends_nudges
    assert not lock_from_row({"leaseholdNudgingLeader": {"S": "me"}}).sends_nudges


def test_suspicion_comes_with_a_missed_heartbeat() -> None:
    """More than half a duration without a sign of life: time to see which leases still move."""
    lock = lock_from_row(JAVAS_ROW)
    watch = next_lock_observation(None, lock, 0)
    assert not is_leader_late(lock, watch, 72_000)
    assert is_leader_late(lock, watch, 72_001)


@pytest.mark.parametrize("row", [None, {**JAVAS_ROW, "isReleased": {"S": "1"}}])
def test_a_released_lock_is_free(row: Row | None) -> None:
    """Gone or marked as released: whoever looks first may lead."""
    lock = None if row is None else lock_from_row(row)
    assert may_acquire(lock, next_lock_observation(None, lock, 0), 0)
    after = next_row(acquire(lock, ME, "v", 15_000, "leaseKey"), row)
    assert after is not None
    assert lock_from_row(after).owner == ME
    assert not lock_from_row(after).is_released


def test_one_of_two_standbys_wins() -> None:
    """Both saw the same silent leader; the second finds that the version has changed."""
    seen = lock_from_row(JAVAS_ROW)
    first = next_row(acquire(seen, ME, "mine", 15_000, "leaseKey"), JAVAS_ROW)
    late = acquire(seen, OTHER, "theirs", 15_000, "leaseKey")
    assert not may_apply(late, first)
    assert not was_applied(late, first)


def test_a_deposed_leader_can_do_nothing() -> None:
    """Its heartbeat and its release find another version, and leave the lock alone."""
    ours = next_row(acquire(None, ME, "v1", 15_000, "leaseKey"), None)
    assert ours is not None
    taken = next_row(acquire(lock_from_row(ours), OTHER, "v2", 15_000, "leaseKey"), ours)
    assert not may_apply(heartbeat(ME, "v1", "v3", 15_000), taken)
    assert not may_apply(release(ME, "v1"), taken)


def test_a_leader_beats_and_lets_go() -> None:
    """The version moves with each heartbeat; the release removes the row."""
    ours = next_row(acquire(None, ME, "v1", 15_000, "leaseKey"), None)
    beaten = next_row(heartbeat(ME, "v1", "v2", 15_000), ours)
    assert beaten is not None
    assert beaten["recordVersionNumber"] == {"S": "v2"}
    assert next_row(release(ME, "v2"), beaten) is None


@pytest.mark.parametrize(
    ("duration", "counts_as"),
    [
        ({"S": "999999999999"}, DURATION_MAX_MS),
        ({"S": "0"}, DURATION_MIN_MS),
        ({"S": "-5"}, KCL_DURATION_MS),
        ({"S": "soon"}, KCL_DURATION_MS),
        ({"S": "9" * 4000}, KCL_DURATION_MS),
        ({"N": "120000"}, KCL_DURATION_MS),
        ({"S": "15000"}, 15_000),
    ],
)
def test_hostile_durations_are_bounded(duration: Attribute, counts_as: int) -> None:
    """No row can keep a fleet without a leader for long, nor make standbys fight one that is well."""
    assert lock_from_row({**JAVAS_ROW, "leaseDuration": duration}).duration_ms == counts_as


@pytest.mark.parametrize("version", [None, {"S": ""}, {"N": "7"}, {"NULL": True}])
def test_a_row_without_a_proper_version_can_be_taken(version: Attribute | None) -> None:
    """A broken lock heals: it is watched and replaced like any other."""
    row: Row = {name: value for name, value in JAVAS_ROW.items() if name != "recordVersionNumber"}
    row = row if version is None else {**row, "recordVersionNumber": version}
    lock = lock_from_row(row)
    watch = next_lock_observation(None, lock, 0)
    assert may_acquire(lock, next_lock_observation(watch, lock, 120_001), 120_001)
    after = next_row(acquire(lock, ME, "v", 15_000, "leaseKey"), row)
    assert after is not None
    assert after["recordVersionNumber"] == {"S": "v"}
    assert after["leaseKey"] == {"S": LEADER_KEY}
