"""Which tables belong to applications, and which of these applications nobody uses.

The rows contain no time of the last write, except for the reports of workers. So an application counts as unused only
if no row of it changed while it was watched, and if its last report is old. A table is judged only if its key, its
index and every row in it are those of a lease table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from leasehold.core.coordinator.kcl_rows import (
    COORDINATOR_KEY_ATTRIBUTE,
    COORDINATOR_TABLE_SUFFIX,
    LEADER_ENTITY,
    LEADER_KEY,
    METRICS_ENTITY,
    METRICS_KEY_ATTRIBUTE,
    METRICS_TABLE_SUFFIX,
    MIGRATION_KEY,
    TABLE_MIGRATION_KEY,
)
from leasehold.core.coordinator.worker_metrics import UPDATED, is_report_row
from leasehold.core.leases.lease_row import ENTITY_TYPE, KEY, is_lease_row, leases_from_rows
from leasehold.core.leases.row_writes import Row
from leasehold.core.time_text import format_time

OWNER_INDEX: Final = "LeaseOwnerToLeaseKeyIndex"
_ENTITIES: Final = frozenset(
    {LEADER_ENTITY, METRICS_ENTITY, "CLIENT_VERSION_MIGRATION", "TABLE_MIGRATION", "STREAM"}
)
_COORDINATOR_KEYS: Final = frozenset({LEADER_KEY, MIGRATION_KEY, TABLE_MIGRATION_KEY})


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table as DynamoDB describes it. `keys` has attribute, type and role of each part of the primary key."""

    name: str
    keys: tuple[tuple[str, str, str], ...]
    indexes: frozenset[str] = frozenset()


class Usage(Enum):
    """What is known about the use of an application."""

    IN_USE = "in use"  # a row changed while it was watched
    RECENT = "recent"  # a worker has reported lately
    UNUSED = "unused"
    UNKNOWN = "unused, age unknown"  # no row changed, and no worker has ever reported: a fleet of peers
    FOREIGN = "not a lease table"  # it has rows of another kind


@dataclass(frozen=True, slots=True)
class ApplicationTables:
    """The names of the tables of one application: the lease table, and those of KCL 3.0 to 3.4."""

    lease: str
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All tables, the lease table last: it is deleted last."""
        return (*self.others, self.lease)


@dataclass(frozen=True, slots=True)
class JudgedApplication:
    """An application, and what is known about its use. `reported_s` is the time of the last report."""

    tables: ApplicationTables
    usage: Usage
    leases: int = 0
    owners: tuple[str, ...] = ()
    reported_s: int | None = None

    @property
    def may_be_deleted(self) -> bool:
        """Whether nothing shows that somebody uses it."""
        return self.usage in {Usage.UNUSED, Usage.UNKNOWN}


def find_applications(shapes: Iterable[TableShape]) -> list[ApplicationTables]:
    """The applications among all tables, by the KCL's names and keys."""
    by_name = {shape.name: shape for shape in shapes}
    related = (
        (COORDINATOR_TABLE_SUFFIX, COORDINATOR_KEY_ATTRIBUTE),
        (METRICS_TABLE_SUFFIX, METRICS_KEY_ATTRIBUTE),
    )
    return [
        ApplicationTables(
            name,
            tuple(
                f"{name}{suffix}" for suffix, key in related if _has_key(by_name.get(f"{name}{suffix}"), key)
            ),
        )
        for name, shape in sorted(by_name.items())
        if _has_key(shape, KEY) and shape.indexes <= {OWNER_INDEX}
    ]


def judge_application(
    tables: ApplicationTables,
    before: Mapping[str, Sequence[Row]],
    after: Mapping[str, Sequence[Row]],
    *,
    wall_s: int,
    idle_s: int,
) -> JudgedApplication:
    """Judge an application by two reads of all its rows, some time apart."""
    rows = [row for name in tables.names for row in after[name]]
    listing = leases_from_rows(after[tables.lease])
    reports = [_reported_s(row) for row in rows if is_report_row(row) or METRICS_KEY_ATTRIBUTE in row]
    reported_s = max((each for each in reports if each is not None), default=None)
    others = [row for name in tables.others for row in after[name]]
    is_pure = all(map(_is_known, after[tables.lease])) and all(map(_is_known_elsewhere, others))
    if not is_pure or listing.rejected or listing.ignored:
        usage = Usage.FOREIGN
    elif any(not _same_rows(before[name], after[name]) for name in tables.names):
        usage = Usage.IN_USE
    elif reported_s is None:
        usage = Usage.UNKNOWN
    else:
        usage = Usage.RECENT if wall_s - reported_s < idle_s else Usage.UNUSED
    owners = sorted({lease.actual_owner for lease in listing.leases if lease.actual_owner is not None})
    return JudgedApplication(tables, usage, len(listing.leases), tuple(owners), reported_s)


def application_to_json(application: JudgedApplication) -> dict[str, Any]:
    """All that is known, as JSON."""
    return {
        "application": application.tables.lease,
        "tables": list(application.tables.names),
        "usage": application.usage.value,
        "leases": application.leases,
        "owners": list(application.owners),
        "last_report": None if application.reported_s is None else format_time(application.reported_s * 1000),
        "may_be_deleted": application.may_be_deleted,
    }


def _has_key(shape: TableShape | None, attribute: str) -> bool:
    return shape is not None and shape.keys == ((attribute, "S", "HASH"),)


def _is_known(row: Row) -> bool:
    """Whether a row of a lease table is a lease or one of the KCL's other rows."""
    if is_lease_row(row) and row.get(KEY, {}).get("S") not in _COORDINATOR_KEYS:
        return True
    return ENTITY_TYPE in row and row[ENTITY_TYPE].get("S") in _ENTITIES


def _is_known_elsewhere(row: Row) -> bool:
    """Whether a row of a coordinator table, or of a table of reports, is the KCL's."""
    if METRICS_KEY_ATTRIBUTE in row:
        return UPDATED in row
    is_named = row.get(COORDINATOR_KEY_ATTRIBUTE, {}).get("S") in _COORDINATOR_KEYS
    return is_named or (ENTITY_TYPE in row and row[ENTITY_TYPE].get("S") in _ENTITIES)


def _same_rows(before: Sequence[Row], after: Sequence[Row]) -> bool:
    return sorted(map(repr, map(_sorted, before))) == sorted(map(repr, map(_sorted, after)))


def _sorted(row: Row) -> list[tuple[str, str]]:
    return sorted((name, repr(value)) for name, value in row.items())


def _reported_s(row: Row) -> int | None:
    text = row.get(UPDATED, {}).get("N")
    return int(text) if isinstance(text, str) and text.isdecimal() else None
