"""Writes whose answers get lost: each is put until it is known whether it happened."""

from __future__ import annotations

from typing import Final

from leasehold.core.leases.row_writes import PutRow, RowWrite, was_applied
from leasehold.errors import UnavailableError
from leasehold.ports import Applied, Refused, RowStore

# How often an unanswered write is put again before the trouble is the caller's. Each one is conditional, so a late
# arrival of an earlier try cannot do harm: it makes the next one fail, and the row then shows that it landed.
WRITE_ATTEMPTS_MAX: Final = 3


async def write_and_confirm(rows: RowStore, write: RowWrite) -> Applied | Refused:
    """Apply a write, and find out whether it happened when the store could not say."""
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
            return _recognised(write, outcome)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _recognised(write: RowWrite, outcome: Applied | Refused) -> Applied | Refused:
    """A refusal may be the echo of our own success: a client that retried finds what its first try wrote."""
    if isinstance(outcome, Refused) and not isinstance(write, PutRow) and was_applied(write, outcome.row):
        return Applied(outcome.row)
    return outcome
