"""Who leads a fleet: the KCL's lock row, and when it may be taken from a leader that has fallen silent.

There is no time in the row. The leader writes a new random version with every heartbeat; a standby remembers when it
first saw a version, on its own monotonic clock, and may take the lock once that version has stood for longer than the
duration *in the row*. The leader counts from before its write, a standby from after its read, so there are never two.

A row of another client is hostile until read: a duration of hours would leave the fleet without a leader for hours, one
of nothing would let standbys fight a leader that is well. Such values are bounded; what cannot be read counts as the
KCL's default. Reads nothing, writes nothing, draws no random version itself.
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
DURATION: Final = "leaseDuration"  # text, in milliseconds; as a number it would break every Java leader check
VERSION: Final = "recordVersionNumber"
RELEASED: Final = "isReleased"
DATA: Final = "data"
# Ours: the worker who, as the leader, leaves word for those whom it gives leases. It counts only while that one leads.
NUDGING_LEADER: Final = "leaseholdNudgingLeader"

KCL_DURATION_MS: Final = 120_000
DURATION_MIN_MS: Final = 5_000
DURATION_MAX_MS: Final = 600_000
LATE_AFTER: Final = 0.6


@dataclass(frozen=True, slots=True)
class LeaderLock:
    """The lock as a row says it is. `version` is the attribute as it stands there, None where there is none."""

    owner: WorkerId | None
    version: Attribute | None
    duration_ms: int
    is_released: bool = False
    sends_nudges: bool = False


@dataclass(frozen=True, slots=True)
class LockObservation:
    """What one standby has seen: this version, unchanged since then on its own clock."""

    version: Attribute | None
    since_ms: int


def lock_from_row(row: Row) -> LeaderLock:
    """The lock in a row, whatever stands there."""
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
    """What a standby remembers after one more look; a version that has changed is a heartbeat."""
    if lock is None:
        return None
    if before is not None and before.version == lock.version:
        return before
    return LockObservation(lock.version, now_ms)


def may_acquire(lock: LeaderLock | None, watch: LockObservation | None, now_ms: int) -> bool:
    """Whether nobody leads: no lock, a released one, or one that has been silent for its whole duration."""
    if lock is None or lock.is_released:
        return True
    return watch is not None and now_ms - watch.since_ms > lock.duration_ms


def is_leader_late(lock: LeaderLock | None, watch: LockObservation | None, seen_ms: int) -> bool:
    """Whether the leader had missed a heartbeat when the lock was seen: time to see which leases still move.

    Ours come twice in a duration, Java's more often.
    """
    return lock is None or watch is None or seen_ms - watch.since_ms > LATE_AFTER * lock.duration_ms


def acquire(
    found: LeaderLock | None, me: WorkerId, version: str, duration_ms: int, key_attribute: str
) -> PutRow | UpdateRow:
    """Become the leader, if the lock is still as it was found."""
    members = {
        OWNER_NAME: text(me),
        DURATION: text(str(duration_ms)),
        VERSION: text(version),
        NUDGING_LEADER: text(me),
    }
    # KCL 3.0 to 3.4 write no kind into their own table, and 3.5 needs it in the lease table.
    kind: dict[str, Attribute] = {} if key_attribute != "leaseKey" else {ENTITY_TYPE: text(LEADER_ENTITY)}
    if found is None:
        return PutRow(LEADER_KEY, {key_attribute: text(LEADER_KEY), **kind, **members})
    return UpdateRow(
        key=LEADER_KEY,
        when=(Equals(key_attribute, text(LEADER_KEY)), _as_found(found)),
        set={**kind, **members},
        remove=(RELEASED, DATA),
        proof=(Equals(VERSION, text(version)),),
    )


def heartbeat(me: WorkerId, version: str, new_version: str, duration_ms: int) -> UpdateRow:
    """Stay the leader for one more duration."""
    return UpdateRow(
        key=LEADER_KEY,
        when=_is_mine(me, version),
        set={DURATION: text(str(duration_ms)), VERSION: text(new_version)},
        proof=(Equals(OWNER_NAME, text(me)), Equals(VERSION, text(new_version))),
    )


def release(me: WorkerId, version: str) -> DeleteRow:
    """Let another lead at once. Nothing happens to a lock that is no longer ours."""
    return DeleteRow(key=LEADER_KEY, when=_is_mine(me, version))


def _is_mine(me: WorkerId, version: str) -> tuple[Condition, ...]:
    return (Equals(VERSION, text(version)), Equals(OWNER_NAME, text(me)))


def _as_found(found: LeaderLock) -> Condition:
    return Absent(VERSION) if found.version is None else Equals(VERSION, found.version)


def _duration_ms(value: Attribute) -> int:
    digits = value.get("S", "")
    if not isinstance(digits, str) or not digits.isascii() or not digits.isdigit() or len(digits) > 15:
        return KCL_DURATION_MS
    return max(DURATION_MIN_MS, min(DURATION_MAX_MS, int(digits)))
