"""Attributes and rows of other programs are never changed."""

from __future__ import annotations

from typing import Final

from leasehold.core.leases import lease_row
from leasehold.core.leases.lease_row import ENTITY_TYPE, is_lease_row
from leasehold.core.leases.row_writes import Attribute, Row, text
from leasehold.simulation.checkers.base import Checker
from leasehold.simulation.environment.ownership import LeaseChange

KNOWN: Final = frozenset(
    value for name, value in vars(lease_row).items() if name.isupper() and isinstance(value, str)
)

# The entity type of rows that another program writes.
FOREIGN: Final = text("FOREIGN")
# An attribute that another program adds to rows of ours.
FOREIGN_ATTRIBUTE: Final = "foreignAttribute"


class UnknownAttributesSurvive(Checker):
    """Compares the foreign attributes of each row before and after a write by a process."""

    promise = "unknown-attributes-survive"

    def lease_changed(self, change: LeaseChange) -> None:
        before, after = change.row.before, change.row.after
        if change.row.by is None or before is None:
            return
        if before.get(ENTITY_TYPE) == FOREIGN:
            self.report(f"{change.row.by.name} wrote to {change.row.key}, a row of another program")
        elif (
            is_lease_row(before)
            and after is not None
            and _foreign_attributes(before) != _foreign_attributes(after)
        ):
            self.report(f"{change.row.by.name} changed foreign attributes of {change.row.key}")


def _foreign_attributes(row: Row) -> dict[str, Attribute]:
    return {name: value for name, value in row.items() if name not in KNOWN}
