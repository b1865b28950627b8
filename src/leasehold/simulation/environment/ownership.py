"""Which process owned which lease, by what the lease table said, and which records each handler was given.

The checkers get these values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from leasehold.core.leases.lease_row import SESSION, is_lease_row, lease_from_row
from leasehold.core.leases.row_writes import Row
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId
from leasehold.core.position import Position
from leasehold.errors import MalformedRowError
from leasehold.simulation.environment.process import SimulatedProcess
from leasehold.simulation.environment.table import RowChange

_CACHED_ROWS_MAX: Final = 5_000


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """A change of a row, with its lease before and after. A lease is None if the row has no readable lease."""

    row: RowChange
    before: Lease | None
    after: Lease | None


@dataclass(slots=True, eq=False)
class Ownership:
    """One lease session: the time in which one process owned one lease.

    `next_index` is the index of the first record that is not done in this session.
    """

    process: SimulatedProcess
    shard: LeaseKey
    session: LeaseSessionId
    counter: int
    start: Position
    began_ms: int
    next_index: int
    ended_ms: int | None = None  # when the session's id left the row
    was_forced: bool = False  # it ended by force (a handoff timed out) or because the row was destroyed
    done: set[int] = field(default_factory=set)  # in this session, if records are handled concurrently


@dataclass(slots=True, eq=False)
class Delivery:
    """One call of a handler with the records from index `first` to index `last`."""

    process: SimulatedProcess
    shard: LeaseKey
    fencing_token: str
    ownership: Ownership | None
    first: int
    last: int
    attempt: int
    began_ms: int
    is_done: bool = False  # the handler has done the records
    is_over: bool = False  # the handler has returned or raised, or was cancelled


def lease_change(change: RowChange) -> LeaseChange:
    """Add the leases to a change of a row."""
    return LeaseChange(change, readable_lease(change.before), readable_lease(change.after))


def readable_lease(row: Row | None) -> Lease | None:
    """Return the lease in a row, or None if the row holds none that can be parsed."""
    if row is None or not is_lease_row(row):
        return None
    try:
        return lease_from_row(row)
    except MalformedRowError:
        return None


class RowReader:
    """`readable_lease` with a cache. Rows are never modified, only replaced, so each row is parsed once."""

    def __init__(self) -> None:
        self._cache: dict[int, tuple[Row, Lease | None]] = {}

    def lease(self, row: Row) -> Lease | None:
        """Return the lease in a row, or None if the row holds none that can be parsed."""
        cached = self._cache.get(id(row))
        if cached is None or cached[0] is not row:
            if len(self._cache) > _CACHED_ROWS_MAX:
                self._cache.clear()
            cached = self._cache[id(row)] = row, readable_lease(row)
        return cached[1]


def session_in(row: Row | None) -> LeaseSessionId | None:
    """Return the session id in a row, even if the rest of the row is malformed."""
    value = (row or {}).get(SESSION, {}).get("S")
    return LeaseSessionId(value) if isinstance(value, str) else None


class Ownerships:
    """The current ownership of each shard, and all former ones."""

    def __init__(self) -> None:
        self.current: dict[LeaseKey, Ownership] = {}
        # The process is part of the key because lease counters start again after a table was deleted.
        self._by_token: dict[tuple[str, SimulatedProcess], Ownership] = {}
        self._latest: dict[tuple[SimulatedProcess, LeaseKey], Ownership] = {}
        # Sessions whose row cannot be read: it was damaged when it was taken. They begin when it is repaired.
        self._taken: dict[LeaseSessionId, tuple[SimulatedProcess, int]] = {}

    def apply(self, change: LeaseChange, next_index: int) -> None:
        """Follow one change of a row. `next_index` is the index of the first record after its checkpoint."""
        shard, row = LeaseKey(change.row.key), change.row
        current, session = self.current.get(shard), session_in(row.after)
        if current is not None and current.session != session:
            current.ended_ms = row.at_ms
            in_handoff = change.before is not None and change.before.is_in_handoff
            current.was_forced = row.by is None or (in_handoff and row.by is not current.process)
            del self.current[shard]
        if session is None:
            return
        if row.by is not None and session != session_in(row.before):
            self._taken[session] = row.by, row.at_ms
        if change.after is not None and session in self._taken:
            by, taken_ms = self._taken.pop(session)
            after = change.after
            begun = Ownership(by, shard, session, after.counter, after.checkpoint, taken_ms, next_index)
            self.current[shard] = self._latest[by, shard] = begun
            self._by_token[f"{shard}:{begun.counter}", by] = begun

    def find_latest(self, process: SimulatedProcess, shard: LeaseKey) -> Ownership | None:
        """Return the last lease session that a process has begun in a shard."""
        return self._latest.get((process, shard))

    def find_by_token(self, fencing_token: str, process: SimulatedProcess) -> Ownership | None:
        """Return the ownership of a process with the fencing token of a batch."""
        return self._by_token.get((fencing_token, process))
