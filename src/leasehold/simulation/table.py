"""The lease table of the world, and the same table as one process reaches it.

Every change is told to whoever watches, with the row before and after and who made it. Scans and the index may be
behind; reads of a single row never are.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.core.leases.row_writes import DeleteRow, Row, RowWrite
from leasehold.ports import Applied, Refused, RowStore
from leasehold.simulation.network import Dependency, Network
from leasehold.simulation.process import SimulatedProcess

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row changed. `by` is None when the world itself did it: an operator, a fault."""

    at_ms: int
    key: str
    before: Row | None
    after: Row | None
    by: SimulatedProcess | None


def run_synchronously(call: Coroutine[Any, Any, T]) -> T:
    """The result of a call of the memory adapter, none of which ever waits."""
    try:
        call.send(None)
    except StopIteration as returned:
        return returned.value  # type: ignore[no-any-return]
    raise AssertionError("the memory adapter never waits")


class SimulatedTable:
    """Rows in memory with a memory of how they were a moment ago."""

    def __init__(self, now_ms: Callable[[], int], rng: random.Random) -> None:
        self.stale_chance = 0.0
        self.stale_max_ms = 3_000
        self.on_change: Callable[[RowChange], None] = lambda _: None
        self._rows = MemoryRows()
        self._now_ms = now_ms
        self._rng = rng
        self._recent: deque[RowChange] = deque()
        self._owned: dict[str | None, set[str]] = {}

    def get(self, key: str) -> Row | None:
        """The row as it is."""
        return run_synchronously(self._rows.get(key))

    def rows(self) -> Sequence[Row]:
        """All rows as they are."""
        return run_synchronously(self._rows.scan())

    def write(self, write: RowWrite, by: SimulatedProcess | None) -> Applied | Refused:
        """Apply one write if its condition holds."""
        before = self.get(write.key)
        outcome = run_synchronously(self._rows.write(write))
        if isinstance(outcome, Applied):
            self._note(write.key, before, outcome.row, by)
        return outcome

    def write_transaction(self, writes: Sequence[RowWrite], by: SimulatedProcess | None) -> bool:
        """Apply all writes or none."""
        before = {write.key: self.get(write.key) for write in writes}
        done = run_synchronously(self._rows.write_transaction(writes))
        if done:
            for key, row in before.items():
                self._note(key, row, self.get(key), by)
        return done

    def replace(self, key: str, row: Row | None) -> None:
        """Put a row as it is, or take it away, as an operator or a fault would."""
        before = self.get(key)
        run_synchronously(self._rows.write(DeleteRow(key=key, when=())))
        if row is not None:
            self._rows._rows[key] = row  # noqa: SLF001 - no condition of the port lets a row be forced
        self._note(key, before, row, None)

    def scan(self) -> Sequence[Row]:
        """All rows, some of them perhaps as they were a moment ago."""
        rows = self.rows()
        if not self.stale_chance or self._rng.random() >= self.stale_chance:
            return rows
        by_key = {row["leaseKey"]["S"]: row for row in rows}
        # Two pages, each from a moment of its own.
        moments = [self._now_ms() - self._rng.randrange(self.stale_max_ms) for _ in range(2)]
        edge = self._rng.choice(sorted(by_key)) if by_key else ""
        for change in reversed(self._recent):
            if change.at_ms > moments[change.key >= edge]:
                if change.before is None:
                    by_key.pop(change.key, None)
                else:
                    by_key[change.key] = change.before
        return tuple(by_key.values())

    def keys_owned_by(self, owner: str) -> Sequence[str]:
        """Keys by owner, from an index that lags like a scan."""
        if not self.stale_chance:
            return sorted(self._owned.get(owner, ()))
        return [row["leaseKey"]["S"] for row in self.scan() if _owner(row) == owner]

    def _note(self, key: str, before: Row | None, after: Row | None, by: SimulatedProcess | None) -> None:
        change = RowChange(self._now_ms(), key, before, after, by)
        self._recent.append(change)
        if _owner(before) != _owner(after):
            self._owned.get(_owner(before), set()).discard(key)
            self._owned.setdefault(_owner(after), set()).add(key)
        while self._recent[0].at_ms < change.at_ms - self.stale_max_ms:
            self._recent.popleft()
        self.on_change(change)


def _owner(row: Row | None) -> str | None:
    return None if row is None else row.get("leaseOwner", {}).get("S")


class ProcessRows(RowStore):
    """The table as one process reaches it: over the network."""

    def __init__(self, table: SimulatedTable, network: Network, process: SimulatedProcess) -> None:
        self._table = table
        self._network = network
        self._process = process

    async def prepare(self) -> None:
        """The table is there; asking whether it is may fail all the same."""
        await self._call("prepare", lambda: None)

    async def create_owner_index(self) -> None:
        """The index is there."""

    async def get(self, key: str) -> Row | None:
        """The row as it is when the request arrives."""
        return await self._call("get", lambda: self._table.get(key))

    async def write(self, write: RowWrite) -> Applied | Refused:
        """Apply one write if its condition holds when it arrives."""
        return await self._call("write", lambda: self._table.write(write, self._process))

    async def write_transaction(self, writes: Sequence[RowWrite]) -> bool:
        """Apply all writes or none."""
        return await self._call("write", lambda: self._table.write_transaction(writes, self._process))

    async def scan(self, *, segments: int = 1) -> Sequence[Row]:  # noqa: ARG002 - part of the port
        """All rows, perhaps a little behind."""
        return await self._call("scan", self._table.scan)

    async def keys_owned_by(self, owner: str) -> Sequence[str] | None:
        """Keys by owner, perhaps a little behind."""
        return await self._call("query", lambda: self._table.keys_owned_by(owner))

    async def close(self) -> None:
        """Rows stay with the world."""

    async def _call(self, name: str, serve: Callable[[], T]) -> T:
        return await self._network.call(self._process, Dependency.LEASES, name, serve)
