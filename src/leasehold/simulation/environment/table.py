"""The simulated lease table, and the same table as one process reaches it over the network.

`on_change` gets every change: the row before and after, and the process that made it. Scans and the index may return
stale rows; a read of a single row is always consistent.
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
from leasehold.simulation.environment.network import Dependency, Network
from leasehold.simulation.environment.process import SimulatedProcess

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of one row. `by` and `sent_ms` are None if no process made it: an operator or a fault did."""

    at_ms: int
    key: str
    before: Row | None
    after: Row | None
    by: SimulatedProcess | None
    sent_ms: int | None  # when the process sent the request


@dataclass(frozen=True, slots=True)
class Sender:
    """The process that sent a request, and when."""

    process: SimulatedProcess
    sent_ms: int


def run_synchronously(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the memory adapter, which never waits, and return its result."""
    try:
        call.send(None)
    except StopIteration as returned:
        return returned.value  # type: ignore[no-any-return]
    raise AssertionError("the memory adapter must not wait")


class SimulatedTable:
    """Rows in memory, with the recent changes, so that scans can return stale rows."""

    def __init__(self, now_ms: Callable[[], int], rng: random.Random) -> None:
        self.stale_chance = 0.0
        self.stale_max_ms = 3_000
        self.on_change: Callable[[RowChange], None] = lambda _: None
        self._rows = MemoryRows()
        self._now_ms = now_ms
        self._rng = rng
        self._recent: deque[RowChange] = deque()  # of the last `stale_max_ms`
        self._keys_by_owner: dict[str | None, set[str]] = {}

    def get(self, key: str) -> Row | None:
        """Return the current row."""
        return run_synchronously(self._rows.get(key))

    def rows(self) -> Sequence[Row]:
        """Return all current rows."""
        return run_synchronously(self._rows.scan())

    def write(self, write: RowWrite, sender: Sender | None) -> Applied | Refused:
        """Apply a write if its condition holds."""
        before = self.get(write.key)
        outcome = run_synchronously(self._rows.write(write))
        if isinstance(outcome, Applied):
            self._record_change(write.key, before, outcome.row, sender)
        return outcome

    def write_transaction(self, writes: Sequence[RowWrite], sender: Sender | None) -> bool:
        """Apply all writes or none."""
        before = {write.key: self.get(write.key) for write in writes}
        done = run_synchronously(self._rows.write_transaction(writes))
        if done:
            for key, row in before.items():
                self._record_change(key, row, self.get(key), sender)
        return done

    def replace(self, key: str, row: Row | None) -> None:
        """Replace or delete a row without a condition, as an operator or a fault does."""
        before = self.get(key)
        run_synchronously(self._rows.write(DeleteRow(key=key, when=())))
        if row is not None:
            self._rows._rows[key] = row  # noqa: SLF001 - the port has no unconditional put
        self._record_change(key, before, row, None)

    def scan(self) -> Sequence[Row]:
        """Return all rows. With `stale_chance`, some of them are up to `stale_max_ms` old."""
        rows = self.rows()
        if not self.stale_chance or self._rng.random() >= self.stale_chance:
            return rows
        by_key = {row["leaseKey"]["S"]: row for row in rows}
        # Two pages, each read at another moment.
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
        """Return the keys of an owner's leases from an index that is as stale as a scan."""
        if not self.stale_chance:
            return sorted(self._keys_by_owner.get(owner, ()))
        return [row["leaseKey"]["S"] for row in self.scan() if _owner(row) == owner]

    def _record_change(self, key: str, before: Row | None, after: Row | None, sender: Sender | None) -> None:
        by, sent_ms = (None, None) if sender is None else (sender.process, sender.sent_ms)
        change = RowChange(self._now_ms(), key, before, after, by, sent_ms)
        self._recent.append(change)
        if _owner(before) != _owner(after):
            self._keys_by_owner.get(_owner(before), set()).discard(key)
            self._keys_by_owner.setdefault(_owner(after), set()).add(key)
        while self._recent[0].at_ms < change.at_ms - self.stale_max_ms:
            self._recent.popleft()
        self.on_change(change)


def _owner(row: Row | None) -> str | None:
    return None if row is None else row.get("leaseOwner", {}).get("S")


class ProcessRows(RowStore):
    """The table as one process reaches it over the network."""

    def __init__(self, table: SimulatedTable, network: Network, process: SimulatedProcess) -> None:
        self._table = table
        self._network = network
        self._process = process

    async def prepare(self) -> None:
        """Make a call that may fail. The table always exists."""
        await self._call("prepare", lambda: None)

    async def create_owner_index(self) -> None:
        """Do nothing: the index always exists."""

    async def get(self, key: str) -> Row | None:
        """Return the row at the time when the request arrives."""
        return await self._call("get", lambda: self._table.get(key))

    async def write(self, write: RowWrite) -> Applied | Refused:
        """Apply a write if its condition holds when the request arrives."""
        sender = self._sender()
        return await self._call("write", lambda: self._table.write(write, sender))

    async def write_transaction(self, writes: Sequence[RowWrite]) -> bool:
        """Apply all writes or none."""
        sender = self._sender()
        return await self._call("write", lambda: self._table.write_transaction(writes, sender))

    async def scan(self, *, segments: int = 1, is_consistent: bool = False) -> Sequence[Row]:  # noqa: ARG002
        """Return all rows; some may be stale, unless `is_consistent`."""
        return await self._call("scan", self._table.rows if is_consistent else self._table.scan)

    async def keys_owned_by(self, owner: str) -> Sequence[str] | None:
        """Return the keys of an owner's leases; they may be stale."""
        return await self._call("query", lambda: self._table.keys_owned_by(owner))

    async def close(self) -> None:
        """Do nothing: other processes use the same table."""

    def _sender(self) -> Sender:
        return Sender(self._process, self._process.clock.now_ms())

    async def _call(self, name: str, serve: Callable[[], T]) -> T:
        return await self._network.call(self._process, Dependency.LEASES, name, serve)
