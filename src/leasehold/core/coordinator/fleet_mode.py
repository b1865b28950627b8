"""How a member joins a fleet: with a leader or as a peer, and in which tables the coordinator rows are.

A member decides this from the rows that it finds before it joins. It follows the fleet as it is, and writes only rows
that a foreign member may write.

The KCL describes the fleet in two rows. `Migration3.0` contains the KCL version: 3.x has a leader, 2.x has peers.
During an upgrade the members are still peers, but they already send worker reports; `upgrade` decides when it ends.
`TableMigration3.5` contains the phase of the move from three tables to one. Only Java members write it. We follow both
rows in every phase.

Without these rows: a leader lock or worker reports mean a fleet of ours with a leader. Owners without them mean KCL 2.x
or peers of ours; their scans of the table would fail on other kinds of rows. If there is no owner either, this member
is the first one and may choose.

There is one exception. The tables of KCL 3.0 to 3.4 may have names of their own, so the rows of such a fleet may exist
where this member does not look. Then a member of it renews a lease (the counter grows, and the row has no session id of
ours), and the lease table has the index of owners, which neither KCL 2.x nor our peers create. Each alone proves
nothing: a rollback to KCL 2.x may leave the index behind, and a killed fleet of ours leaves owners. This member then
refuses to join, because as a peer it would take leases against the leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from leasehold.config.settings import Mode
from leasehold.core.coordinator.kcl_rows import (
    HAS_LEADER,
    HAS_LEADER_WITH_ROLLBACK,
    UPGRADING,
    client_version,
)
from leasehold.core.leases.row_writes import Row
from leasehold.errors import ConfigError

_LEADER: Final = frozenset({HAS_LEADER, HAS_LEADER_WITH_ROLLBACK})
_PEERS: Final = frozenset({"CLIENT_VERSION_2X", "CLIENT_VERSION_INIT", UPGRADING})

_DEPLOYED: Final = "TABLE_MIGRATION_STATUS_DEPLOYED"
_PENDING: Final = "TABLE_MIGRATION_STATUS_PENDING"
_COMPLETE: Final = "TABLE_MIGRATION_STATUS_COMPLETE"


class TableLayout(Enum):
    """In which tables the rows are that are not leases."""

    SINGLE_TABLE = "in the lease table"  # KCL 3.5 and later
    SEPARATE_TABLES = "in separate tables"  # KCL 3.0 to 3.4


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRows:
    """The rows that a member found. A row is None if it, or its table, does not exist.

    `migration` may come from either table. `table_migration` comes only from the coordinator table, because Java reads
    it only there. `foreign_counters` are the owner and the counter of each owned lease without a session id of ours.
    `hidden_owners` renewed such a lease, although the rows show no leader and the table has the index of owners.
    """

    migration: Row | None = None
    has_coordinator_table: bool = False
    table_migration: Row | None = None
    has_lock: bool = False
    has_reports: bool = False
    has_reports_in_lease_table: bool = False
    has_owners: bool = False
    foreign_counters: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    hidden_owners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMode:
    """How this member takes part in a fleet: with a leader or as a peer, with reports or without, and in which tables.

    `version` is the KCL version in the row `Migration3.0`. Different versions may mean the same mode.
    """

    has_leader: bool
    sends_reports: bool
    lock_layout: TableLayout = TableLayout.SINGLE_TABLE
    reports_layout: TableLayout = TableLayout.SINGLE_TABLE
    version: str | None = field(default=None, compare=False)

    @property
    def is_upgrading(self) -> bool:
        """Whether peers already report, to have a leader as soon as all of them do."""
        return self.sends_reports and not self.has_leader


PEERS: Final = FleetMode(has_leader=False, sends_reports=False)


def resolve_mode(found: FleetRows, wanted: Mode, application: str) -> FleetMode:
    """How to join the fleet with these rows. Raises ConfigError if the setting `mode` contradicts them."""
    version = client_version(found.migration)
    if version is not None and version not in _LEADER | _PEERS:
        raise ConfigError(
            f"application {application!r}: its row Migration3.0 has version {version!r}, which no known KCL writes; "
            "repair or delete the row"
        )
    _refuse_hidden_leader(found, application)
    is_led = _has_leader(found, version)
    if wanted is Mode.PEER and (version in _LEADER or (version is None and found.has_lock)):
        raise ConfigError(
            f"application {application!r} has a leader, which assigns the leases: a member with mode='peer' takes "
            "leases by itself, against the leader; use mode='auto' or another application name"
        )
    if wanted is Mode.LEADER and version is not None and not is_led:
        raise ConfigError(
            f"application {application!r} has no leader: its KCL 2.x members take leases by themselves, and cannot "
            "read the rows of a leader; use mode='auto', or finish their migration to 3.x first"
        )
    if wanted is Mode.PEER:
        return PEERS
    has_leader = is_led or wanted is Mode.LEADER
    return FleetMode(
        has_leader=has_leader,
        # A Java leader takes an owner without a report for a 2.x worker, and would wait for ever for its upgrade.
        sends_reports=has_leader or version == UPGRADING,
        lock_layout=_lock_layout(found),
        reports_layout=_reports_layout(found),
        version=version,
    )


def may_hide_leader(found: FleetRows, wanted: Mode) -> bool:
    """Whether these rows may belong to a fleet whose leader this member does not see.

    With mode='peer', the user has said that there is none.
    """
    is_explained = (
        found.migration is not None or found.has_lock or found.has_reports or found.has_coordinator_table
    )
    return wanted is not Mode.PEER and bool(found.foreign_counters) and not is_explained


def renewing_owners(before: FleetRows, after: FleetRows) -> tuple[str, ...]:
    """The owners of leases without a session id of ours that were renewed between two reads: the counter has grown.

    A damaged counter that an operator repairs in between proves nothing.

    >>> renewing_owners(
    ...     FleetRows(foreign_counters={"s-0": ("java-1", "7"), "s-1": ("java-2", "3")}),
    ...     FleetRows(foreign_counters={"s-0": ("java-1", "8"), "s-1": ("java-3", "4")}),
    ... )
    ('java-1',)
    """
    renewed = {
        owner
        for key, (owner, counter) in after.foreign_counters.items()
        if before.foreign_counters.get(key, ("", ""))[0] == owner
        and _has_grown(before.foreign_counters[key][1], counter)
    }
    return tuple(sorted(renewed))


def _has_grown(before: str, after: str) -> bool:
    return before.isdecimal() and after.isdecimal() and int(after) > int(before)


def _refuse_hidden_leader(found: FleetRows, application: str) -> None:
    if found.hidden_owners:
        raise ConfigError(
            f"application {application!r}: worker {found.hidden_owners[0]!r} renews leases, and the lease table has "
            "the index of owners that a fleet with a leader (KCL 3.x) creates, but neither the lease table nor the "
            "coordinator table has the rows of a leader. If this fleet (KCL 3.0 to 3.4) configures "
            "coordinatorStateTableConfig().tableName() and workerMetricsTableConfig().tableName(), set "
            "coordinator_table and worker_metrics_table to these names (Spark: coordinatorTable and "
            "workerMetricsTable). If its members are KCL 2.x, set mode='peer'"
        )


def _has_leader(found: FleetRows, version: str | None) -> bool:
    if version is not None:
        return version in _LEADER
    return found.has_lock or found.has_reports or found.has_coordinator_table or not found.has_owners


def _move_phase(found: FleetRows) -> str:
    return str((found.table_migration or {}).get("tm", {}).get("S", ""))


def _lock_layout(found: FleetRows) -> TableLayout:
    """The lock moves last, when the move of the tables is complete."""
    if not found.has_coordinator_table or _move_phase(found) == _COMPLETE:
        return TableLayout.SINGLE_TABLE
    return TableLayout.SEPARATE_TABLES


def _reports_layout(found: FleetRows) -> TableLayout:
    """Where our report goes: to one table only, and not to the old one once other members have left it.

    In the phase DEPLOYED each Java member changes to the new table when it is restarted. We change when the first one
    has. The move cannot continue while a member reports to the old table.
    """
    if not found.has_coordinator_table or _move_phase(found) in {_COMPLETE, _PENDING}:
        return TableLayout.SINGLE_TABLE
    if _move_phase(found) == _DEPLOYED and found.has_reports_in_lease_table:
        return TableLayout.SINGLE_TABLE
    return TableLayout.SEPARATE_TABLES
