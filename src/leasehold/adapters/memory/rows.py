"""Rows in memory: for unit tests and the simulator. Conditional writes are as strict as DynamoDB's."""

from __future__ import annotations

from collections.abc import Sequence

from leasehold.core.leases.row_writes import Row, RowWrite, may_apply, next_row
from leasehold.ports import Applied, Refused, RowStore


class MemoryRows(RowStore):
    """A table that lives as long as this object. For one event loop at a time; no write ever waits."""

    def __init__(self, rows: Sequence[Row] = (), *, key_attribute: str = "leaseKey") -> None:
        self._rows: dict[str, Row] = {row[key_attribute]["S"]: row for row in rows}

    async def prepare(self) -> None:
        """Nothing to prepare."""

    async def create_owner_index(self) -> None:
        """Nothing to do: `keys_owned_by` checks all rows."""

    async def get(self, key: str) -> Row | None:
        """The current row."""
        return self._rows.get(key)

    async def write(self, write: RowWrite) -> Applied | Refused:
        """Apply one write if its condition holds."""
        before = self._rows.get(write.key)
        if not may_apply(write, before):
            return Refused(before)
        return Applied(self._put(write, before))

    async def write_transaction(self, writes: Sequence[RowWrite]) -> bool:
        """Apply all writes or none."""
        if not all(may_apply(write, self._rows.get(write.key)) for write in writes):
            return False
        for write in writes:
            self._put(write, self._rows.get(write.key))
        return True

    async def scan(self, *, segments: int = 1, is_consistent: bool = False) -> Sequence[Row]:  # noqa: ARG002
        """Every row, always up to date; memory gains nothing from parallel segments."""
        return tuple(self._rows.values())

    async def keys_owned_by(self, owner: str) -> Sequence[str] | None:
        """Keys by owner, always up to date."""
        return [key for key, row in self._rows.items() if row.get("leaseOwner", {}).get("S") == owner]

    async def close(self) -> None:
        """Nothing to close."""

    def _put(self, write: RowWrite, before: Row | None) -> Row | None:
        after = next_row(write, before)
        if after is None:
            self._rows.pop(write.key, None)
        else:
            self._rows[write.key] = after
        return after
