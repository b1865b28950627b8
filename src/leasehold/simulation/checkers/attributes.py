"""Attributes and rows that nobody here knows survive."""

from __future__ import annotations

from typing import Final

from leasehold.core import lease_row
from leasehold.core.lease_row import is_lease_row
from leasehold.core.row_writes import Attribute, Row
from leasehold.simulation.checkers.base import Checker
from leasehold.simulation.facts import LeaseChange

KNOWN: Final = frozenset(
    value for name, value in vars(lease_row).items() if name.isupper() and isinstance(value, str)
)


class UnknownAttributesSurvive(Checker):
    """Compares what is not ours before and after each write of a process."""

    promise = "unknown-attributes-survive"

    def lease_changed(self, change: LeaseChange) -> None:
        before, after = change.row.before, change.row.after
        if change.row.by is None or before is None:
            return
        if not is_lease_row(before):
            self.broken(f"{change.row.by.name} wrote to {change.row.key}, which is no lease")
        elif after is not None and _foreign(before) != _foreign(after):
            self.broken(f"{change.row.by.name} changed attributes of {change.row.key} that are not ours")


def _foreign(row: Row) -> dict[str, Attribute]:
    return {name: value for name, value in row.items() if name not in KNOWN}
