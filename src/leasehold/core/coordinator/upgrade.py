"""When a fleet that upgrades from KCL 2.x may have a leader, and which member decides it.

Each member computes the decider from the owners in the table: it sorts their names, shuffles them with Java's random
numbers from a fixed seed, and takes the first. If this is one of our members, no Java member decides in its place, so
ours has to act as a Java member would. The decider checks the fleet every minute. When the fleet has been ready for ten
minutes without a break, it writes into the migration row that the fleet has a leader, with the option to roll back. All
members read this row once a minute, and change their mode.

The conditions, the times and the write are those of Java.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from leasehold.core.coordinator.kcl_rows import HAS_LEADER_WITH_ROLLBACK, MIGRATION_KEY, UPGRADING, VERSION
from leasehold.core.coordinator.worker_metrics import EXPIRED_AFTER_MS, WorkerReport
from leasehold.core.leases.row_writes import Attribute, Equals, Row, UpdateRow, number, text
from leasehold.core.model import Lease, WorkerId

CHECK_EVERY_MS: Final = 60_000
READY_FOR_MS: Final = 600_000
HISTORY_MAX: Final = 10

MODIFIED_BY: Final = "mb"
MODIFIED_MS: Final = "mts"
HISTORY: Final = "h"

_SEED: Final = 1947
_MULTIPLIER: Final = 0x5DEECE66D
_STATE_BITS: Final = 48


def upgrade_decider(owners: Iterable[WorkerId]) -> WorkerId | None:
    """The owner that decides for a fleet without a leader, computed as Java computes it.

    >>> upgrade_decider(WorkerId(f"w{number:02d}") for number in range(5))
    'w04'
    """
    # Java compares text by UTF-16 code units.
    names = sorted(set(owners), key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    for size, pick in zip(range(len(names), 1, -1), _java_picks(len(names)), strict=True):
        names[size - 1], names[pick] = names[pick], names[size - 1]
    return names[0] if names else None


def is_ready_for_leader(
    leases: Collection[Lease], reports: Iterable[WorkerReport], wall_s: int, *, has_index: bool
) -> bool:
    """Whether the fleet may have a leader now: each lease has an owner with a fresh report, and the owner index exists.

    An owner without a report runs KCL 2.x, or is dead.
    """
    reporting = {report.worker for report in reports if report.updated_s + EXPIRED_AFTER_MS // 1000 > wall_s}
    return has_index and all(lease.owner in reporting for lease in leases)


def next_ready_since(before_ms: int | None, now_ms: int, *, ready: bool) -> int | None:
    """Since when the fleet is ready without a break; None if it is not."""
    if not ready:
        return None
    return now_ms if before_ms is None else before_ms


def may_enable_leader(ready_since_ms: int | None, now_ms: int) -> bool:
    """Whether the fleet has been ready for long enough."""
    return ready_since_ms is not None and now_ms - ready_since_ms >= READY_FOR_MS


def enable_leader(row: Row, me: WorkerId, wall_ms: int) -> UpdateRow:
    """Write that the fleet has a leader. Refused if another member has changed the version meanwhile."""
    modified = {MODIFIED_BY: text(me), MODIFIED_MS: number(wall_ms)}
    version = text(HAS_LEADER_WITH_ROLLBACK)
    return UpdateRow(
        key=MIGRATION_KEY,
        when=(Equals(VERSION, text(UPGRADING)),),
        set={VERSION: version, **modified, HISTORY: _history_after(row)},
        proof=(Equals(VERSION, version), *(Equals(name, value) for name, value in modified.items())),
    )


def _history_after(row: Row) -> Attribute:
    """The history with the current version in front. An incomplete entry would stop every starting Java member."""
    names = (VERSION, MODIFIED_BY, MODIFIED_MS)
    current = [{"M": {name: row[name] for name in names}}] if all(name in row for name in names) else []
    before: list[Any] = list(row.get(HISTORY, {}).get("L", ()))
    return {"L": [*current, *before][:HISTORY_MAX]}


def _java_picks(size: int) -> Iterable[int]:
    """The results of `java.util.Random(1947)` for `nextInt(size)`, `nextInt(size - 1)`, ... `nextInt(2)`."""
    state = (_SEED ^ _MULTIPLIER) % 2**_STATE_BITS
    for bound in range(size, 1, -1):
        is_fair = False
        while not is_fair:
            state = (state * _MULTIPLIER + 0xB) % 2**_STATE_BITS
            drawn = state >> (_STATE_BITS - 31)
            # The last numbers of the range would make small results more likely. Java draws again.
            is_fair = drawn - drawn % bound + bound - 1 < 2**31
        yield (bound * drawn) >> 31 if bound & (bound - 1) == 0 else drawn % bound
