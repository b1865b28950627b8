"""Writes a row and finds out whether the write was applied, even if the response is lost."""

from __future__ import annotations

from typing import Final

from leasehold.core.leases.row_writes import RowWrite, was_applied
from leasehold.errors import UnavailableError
from leasehold.ports import Applied, Refused, RowStore

# How often a write without a response is sent before the error is raised. Every write is conditional, so the late
# arrival of an earlier attempt does no harm: the next attempt is refused, and the row shows that the write was applied.
WRITE_ATTEMPTS_MAX: Final = 3


async def write_and_confirm(rows: RowStore, write: RowWrite) -> Applied | Refused:
    """Apply a write. If there is no response, read the row to see whether it was applied."""
    for attempt in range(1, WRITE_ATTEMPTS_MAX + 1):
        try:
            outcome = await rows.write(write)
        except UnavailableError:
            row = await rows.get(write.key)
            if was_applied(write, row):
                return Applied(row)
            if attempt == WRITE_ATTEMPTS_MAX:
                raise
        else:
            return _correct_refusal(write, outcome)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _correct_refusal(write: RowWrite, outcome: Applied | Refused) -> Applied | Refused:
    """A client that retries by itself may be refused because its first attempt was applied: that is no refusal."""
    if isinstance(outcome, Refused) and was_applied(write, outcome.row):
        return Applied(outcome.row)
    return outcome
