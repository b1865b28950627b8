"""What the checkers are told: changes of leases, deliveries to handlers, and who holds what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leasehold.core.leases.lease_row import SESSION, is_lease_row, lease_from_row
from leasehold.core.leases.row_writes import Row
from leasehold.core.model import Lease, LeaseSessionId, ShardId
from leasehold.core.position import Position
from leasehold.errors import MalformedRowError
from leasehold.simulation.process import SimulatedProcess
from leasehold.simulation.table import RowChange

_ROWS_REMEMBERED: Final = 5_000


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """A change of a row, and the lease in it before and after; None where there is none that can be read."""

    row: RowChange
    before: Lease | None
    after: Lease | None


@dataclass(slots=True, eq=False)
class Ownership:
    """One holding of a lease by one process. `next_index` is the first record that it has not done yet."""

    process: SimulatedProcess
    shard: ShardId
    session: LeaseSessionId
    counter: int
    start: Position
    began_ms: int
    next_index: int
    ended_ms: int | None = None  # when the row stopped to name this holding
    was_forced: bool = (
        False  # it ended although its owner was not silent: overruled, or the row was destroyed
    )


@dataclass(slots=True, eq=False)
class Delivery:
    """Some records in the hands of a handler: those from index `first` to `last`."""

    process: SimulatedProcess
    shard: ShardId
    token: str
    ownership: Ownership | None
    first: int
    last: int
    attempt: int
    began_ms: int
    is_done: bool = False  # the handler says so
    is_over: bool = False  # the handler has returned, raised or was cancelled


def lease_change(change: RowChange) -> LeaseChange:
    """A change with its leases."""
    return LeaseChange(change, readable_lease(change.before), readable_lease(change.after))


def readable_lease(row: Row | None) -> Lease | None:
    """The lease in a row, if there is one and it can be read."""
    if row is None or not is_lease_row(row):
        return None
    try:
        return lease_from_row(row)
    except MalformedRowError:
        return None


class RowReader:
    """Reads rows as `readable_lease` does, each of them once: rows do not change, they are replaced."""

    def __init__(self) -> None:
        self._read: dict[int, tuple[Row, Lease | None]] = {}

    def lease(self, row: Row) -> Lease | None:
        """The lease in a row, if there is one and it can be read."""
        known = self._read.get(id(row))
        if known is None or known[0] is not row:
            if len(self._read) > _ROWS_REMEMBERED:
                self._read.clear()
            known = self._read[id(row)] = row, readable_lease(row)
        return known[1]


def session_in(row: Row | None) -> LeaseSessionId | None:
    """The holding that a row names, readable or not."""
    value = (row or {}).get(SESSION, {}).get("S")
    return LeaseSessionId(value) if isinstance(value, str) else None


class Ownerships:
    """Who holds, and who held, which lease."""

    def __init__(self) -> None:
        self.current: dict[ShardId, Ownership] = {}
        # By process as well: where a table was deleted, counters begin anew.
        self._by_token: dict[tuple[str, SimulatedProcess], Ownership] = {}

    def note(self, change: LeaseChange, next_index: int) -> None:
        """Follow one change of a row. `next_index` is the first record that its checkpoint leaves to be done."""
        shard, row = ShardId(change.row.key), change.row
        held, session = self.current.get(shard), session_in(row.after)
        if held is not None and held.session != session:
            held.ended_ms = row.at_ms
            in_handoff = change.before is not None and change.before.is_in_handoff
            held.was_forced = row.by is None or (in_handoff and row.by is not held.process)
            del self.current[shard]
        begins = session is not None and session != session_in(row.before)
        if begins and row.by is not None and change.after is not None:
            assert session is not None
            begun = Ownership(
                row.by,
                shard,
                session,
                change.after.counter,
                change.after.checkpoint,
                row.at_ms,
                next_index,
            )
            self.current[shard] = begun
            self._by_token[f"{shard}:{begun.counter}", row.by] = begun

    def find_by_token(self, token: str, process: SimulatedProcess) -> Ownership | None:
        """The ownership that a batch names, if it is this process's."""
        return self._by_token.get((token, process))
