"""The leader lock: the KCL's lock row, its writes, and when a standby may acquire it from a silent leader.

The row contains no time. The leader writes a new random version with each heartbeat. A standby remembers when it first
saw a version, on its own monotonic clock. It may acquire the lock when this version is older than the duration *in the
row*. The leader measures from before its write, a standby from after its read, so there are never two leaders.

The row of another client is untrusted. With a duration of hours the fleet would have no leader for hours; with a
duration of zero, standbys would acquire the lock of a living leader. So the duration is bounded, and an unreadable one
counts as the KCL's default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leasehold.core.coordinator.kcl_rows import LEADER_ENTITY, LEADER_KEY
from leasehold.core.leases.lease_row import ENTITY_TYPE
from leasehold.core.leases.row_writes import (
    Absent,
    Attribute,
    Condition,
    DeleteRow,
    Equals,
    PutRow,
    Row,
    UpdateRow,
    text,
)
from leasehold.core.model import WorkerId

OWNER_NAME: Final = "ownerName"
DURATION: Final = "leaseDuration"  # text, in milliseconds: a number would break the Java leader check
VERSION: Final = "recordVersionNumber"
RELEASED: Final = "isReleased"
DATA: Final = "data"
# Our own attribute: the id of a leader that nudges the workers to which it assigns leases. It counts only if this is
# also the owner of the lock, because a Java leader does not remove it.
NUDGING_LEADER: Final = "leaseholdNudgingLeader"

KCL_DURATION_MS: Final = 120_000
DURATION_MIN_MS: Final = 5_000
DURATION_MAX_MS: Final = 600_000
LATE_AFTER: Final = 0.6


@dataclass(frozen=True, slots=True)
class LeaderLock:
    """The lock in a row. `version` is the unparsed attribute; None if it is missing."""

    owner: WorkerId | None
    version: Attribute | None
    duration_ms: int
    is_released: bool = False
    sends_nudges: bool = False


@dataclass(frozen=True, slots=True)
class LockObservation:
    """A version of the lock, and since when one standby sees it, on its own clock."""

    version: Attribute | None
    since_ms: int


def lock_from_row(row: Row) -> LeaderLock:
    """Parses the lock row. Every row gives a lock."""
    owner = row.get(OWNER_NAME, {}).get("S")
    return LeaderLock(
        owner=WorkerId(owner) if isinstance(owner, str) and owner else None,
        version=row.get(VERSION),
        duration_ms=_duration_ms(row.get(DURATION, {})),
        is_released=RELEASED in row,
        sends_nudges=isinstance(owner, str) and row.get(NUDGING_LEADER, {}).get("S") == owner,
    )


def next_lock_observation(
    before: LockObservation | None, lock: LeaderLock | None, now_ms: int
) -> LockObservation | None:
    """The observation after one more refresh. A new version is a heartbeat."""
    if lock is None:
        return None
    if before is not None and before.version == lock.version:
        return before
    return LockObservation(lock.version, now_ms)


def may_acquire(lock: LeaderLock | None, watch: LockObservation | None, now_ms: int) -> bool:
    """Whether the lock is free: it does not exist, was released, or is unchanged for longer than its duration."""
    if lock is None or lock.is_released:
        return True
    return watch is not None and now_ms - watch.since_ms > lock.duration_ms


def is_leader_late(lock: LeaderLock | None, watch: LockObservation | None, seen_ms: int) -> bool:
    """Whether the leader had missed a heartbeat when the lock was last read. A standby then starts to watch all leases.

    Our leader sends two heartbeats per duration, a Java leader more.
    """
    return lock is None or watch is None or seen_ms - watch.since_ms > LATE_AFTER * lock.duration_ms


def acquire(
    found: LeaderLock | None, me: WorkerId, version: str, duration_ms: int, key_attribute: str
) -> PutRow | UpdateRow:
    """Acquire the lock, if it is still as it was read."""
    attributes = {
        OWNER_NAME: text(me),
        DURATION: text(str(duration_ms)),
        VERSION: text(version),
        NUDGING_LEADER: text(me),
    }
    # KCL 3.5 needs the entity type in the lease table. KCL 3.0 to 3.4 write none into their separate table.
    entity_type: dict[str, Attribute] = (
        {} if key_attribute != "leaseKey" else {ENTITY_TYPE: text(LEADER_ENTITY)}
    )
    if found is None:
        return PutRow(LEADER_KEY, {key_attribute: text(LEADER_KEY), **entity_type, **attributes})
    return UpdateRow(
        key=LEADER_KEY,
        when=(Equals(key_attribute, text(LEADER_KEY)), _is_unchanged(found)),
        set={**entity_type, **attributes},
        remove=(RELEASED, DATA),
        proof=(Equals(VERSION, text(version)),),
    )


def heartbeat(me: WorkerId, version: str, new_version: str, duration_ms: int) -> UpdateRow:
    """Renew the lock for one more duration."""
    return UpdateRow(
        key=LEADER_KEY,
        when=_is_ours(me, version),
        set={DURATION: text(str(duration_ms)), VERSION: text(new_version)},
        proof=(Equals(OWNER_NAME, text(me)), Equals(VERSION, text(new_version))),
    )


def release(me: WorkerId, version: str) -> DeleteRow:
    """Release the lock, so that another member may lead at once. Refused if the lock is no longer ours."""
    return DeleteRow(key=LEADER_KEY, when=_is_ours(me, version))


def _is_ours(me: WorkerId, version: str) -> tuple[Condition, ...]:
    return (Equals(VERSION, text(version)), Equals(OWNER_NAME, text(me)))


def _is_unchanged(found: LeaderLock) -> Condition:
    return Absent(VERSION) if found.version is None else Equals(VERSION, found.version)


def _duration_ms(value: Attribute) -> int:
    digits = value.get("S", "")
    if not isinstance(digits, str) or not digits.isascii() or not digits.isdigit() or len(digits) > 15:
        return KCL_DURATION_MS
    return max(DURATION_MIN_MS, min(DURATION_MAX_MS, int(digits)))
