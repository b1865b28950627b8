"""How a fleet shares out its leases, and where its common rows lie: what a member concludes from the rows that it finds
before it joins. Join what is there; write only what a foreign member may.

The KCL says it in two rows. `Migration3.0` names the generation: 3.x has a leader, 2.x has peers, and in between
members still are peers but already tell how busy they are; when that ends is `upgrade`'s. `TableMigration3.5` names the
phase of the move from three tables to one, and only Java members write it. We follow both, in every phase.

Without either row: a leader lock or workers' reports mean a fleet of ours that has a leader; owners without them mean
KCL 2.x or peers of ours, whose lists of leases would break on rows of another kind; nobody at all means that we are the
first, and may choose.
"""

from __future__ import annotations

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
    """Where rows that are not leases lie."""

    SINGLE_TABLE = "the lease table"  # KCL 3.5 and later
    SEPARATE_TABLES = "tables of their own"  # KCL 3.0 to 3.4


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRows:
    """What a member found. A row is None where it is missing, or where its table is.

    `migration` may come from either table; `table_migration` counts only in the coordinator's own table, which is
    where Java decides by it.
    """

    migration: Row | None = None
    has_coordinator_table: bool = False
    table_migration: Row | None = None
    has_lock: bool = False
    has_reports: bool = False
    has_reports_in_lease_table: bool = False
    has_owners: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMode:
    """How to take part: with a leader or as peers, whether to tell how busy we are, and where those rows go.

    `version` is what the row `Migration3.0` said when this was concluded; another one may mean the same mode.
    """

    has_leader: bool
    reports: bool
    lock_layout: TableLayout = TableLayout.SINGLE_TABLE
    reports_layout: TableLayout = TableLayout.SINGLE_TABLE
    version: str | None = field(default=None, compare=False)

    @property
    def is_upgrading(self) -> bool:
        """Peers that report will have a leader as soon as all of them do."""
        return self.reports and not self.has_leader


PEERS: Final = FleetMode(has_leader=False, reports=False)


def resolve_mode(found: FleetRows, wanted: Mode, application: str) -> FleetMode:
    """How to take part in the fleet that these rows belong to. Raises ConfigError where `wanted` would fight it."""
    version = client_version(found.migration)
    if version is not None and version not in _LEADER | _PEERS:
        raise ConfigError(
            f"application {application!r}: its row Migration3.0 says {version!r}, which no KCL that we know writes; "
            "repair or delete the row"
        )
    is_led = _is_led(found, version)
    if wanted is Mode.PEER and (version in _LEADER or (version is None and found.has_lock)):
        raise ConfigError(
            f"application {application!r} has a leader, which assigns the leases: a member with mode='peer' takes "
            "leases by itself, and the two would fight; use mode='auto' or another application name"
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
        # Java takes an owner without a report for a 2.x worker, and would wait for it for ever.
        reports=has_leader or version == UPGRADING,
        lock_layout=_lock_in(found),
        reports_layout=_reports_in(found),
        version=version,
    )


def _is_led(found: FleetRows, version: str | None) -> bool:
    if version is not None:
        return version in _LEADER
    return found.has_lock or found.has_reports or found.has_coordinator_table or not found.has_owners


def _phase(found: FleetRows) -> str:
    return str((found.table_migration or {}).get("tm", {}).get("S", ""))


def _lock_in(found: FleetRows) -> TableLayout:
    """The lock moves last, when the move of the tables is complete."""
    if not found.has_coordinator_table or _phase(found) == _COMPLETE:
        return TableLayout.SINGLE_TABLE
    return TableLayout.SEPARATE_TABLES


def _reports_in(found: FleetRows) -> TableLayout:
    """Where our own report goes: never to two places, and not to the old one once the others have left it.

    In the phase DEPLOYED each Java member moves when it is restarted; we move when the first of them has. The move
    would not go on while anybody reports in the old place.
    """
    if not found.has_coordinator_table or _phase(found) in {_COMPLETE, _PENDING}:
        return TableLayout.SINGLE_TABLE
    if _phase(found) == _DEPLOYED and found.has_reports_in_lease_table:
        return TableLayout.SINGLE_TABLE
    return TableLayout.SEPARATE_TABLES
