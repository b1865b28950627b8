"""Attributes and rows that nobody here knows survive."""

from __future__ import annotations

from typing import Final

from leasehold.core.leases import lease_row
from leasehold.core.leases.lease_row import ENTITY_TYPE, is_lease_row
from leasehold.core.leases.row_writes import Attribute, Row, text
from leasehold.simulation.checkers.base import Checker
from leasehold.simulation.ownership import LeaseChange

KNOWN: Final = frozenset(
    value for name, value in vars(lease_row).items() if name.isupper() and isinstance(value, str)
)

# What kind of row a visitor plants, whom nobody here knows.
FOREIGN: Final = text("VISITOR")


class UnknownAttributesSurvive(Checker):
    """Compares what is not ours before and after each write of a process."""

    promise = "unknown-attributes-survive"

    def lease_changed(self, change: LeaseChange) -> None:
        before, after = change.row.before, change.row.after
        if change.row.by is None or before is None:
            return
        if before.get(ENTITY_TYPE) == FOREIGN:
            self.broken(f"{change.row.by.name} wrote to {change.row.key}, which is not ours")
        elif is_lease_row(before) and after is not None and _foreign(before) != _foreign(after):
            self.broken(f"{change.row.by.name} changed attributes of {change.row.key} that are not ours")


def _foreign(row: Row) -> dict[str, Attribute]:
    return {name: value for name, value in row.items() if name not in KNOWN}
