"""The seams to the outside: what the fleet needs, said without naming who provides it.

All of them are asynchronous, because the fleet is. A lost race is a returned value; a failure of the world is an
exception from `leasehold.errors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from leasehold.core.row_writes import Row, RowWrite


@dataclass(frozen=True, slots=True)
class Applied:
    """The write took place. `row` is the row after it, None after a deletion."""

    row: Row | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The condition did not hold. `row` is the row as it is, None if there is none."""

    row: Row | None


class RowStore(Protocol):
    """One table of rows with conditional writes: DynamoDB, a SQLite file, or memory.

    Every read of a single row sees all writes that were answered before it began. A scan may be behind. Rows carry
    DynamoDB's attribute types, and attributes that nobody here knows are kept.

    A write that raises `UnavailableError` may or may not have happened. `ThrottledError` means that it did not.
    """

    async def prepare(self) -> None:
        """Create the table and its index of owners where they are missing. Waits for the table, not for the index."""
        ...

    async def get(self, key: str) -> Row | None:
        """The row as it is now, or None."""
        ...

    async def write(self, write: RowWrite) -> Applied | Refused:
        """Apply one write if its condition holds."""
        ...

    async def write_together(self, writes: Sequence[RowWrite]) -> bool:
        """Apply all writes, or, when a condition does not hold, none. Says which of the two."""
        ...

    async def scan(self, *, segments: int = 1) -> Sequence[Row]:
        """Every row, read page by page, in `segments` parallel lanes. May miss the newest writes."""
        ...

    async def keys_owned_by(self, owner: str) -> Sequence[str] | None:
        """Keys of the rows whose `leaseOwner` is `owner`, through the index; may be behind.

        None when there is no index, or none that can be read yet: then only a scan knows.
        """
        ...

    async def close(self) -> None:
        """Give back connections and threads. Rows stay."""
        ...
