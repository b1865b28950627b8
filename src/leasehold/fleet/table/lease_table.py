"""Reads and writes leases: every operation of the KCL's lease protocol, on any store of rows.

Each operation builds a write from a rule (`core.leases.lease_rules`) and applies it. A lost race is a result
(`Contended`, with the lease as it is now), not an error. If the response to a write is lost, the row is read again, so
that every caller knows whether its write was applied. Nothing here decides which member should own a lease.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from leasehold.core.events import Observer
from leasehold.core.leases import lease_rules
from leasehold.core.leases.lease_row import LeaseListing, is_lease_row, lease_from_row, leases_from_rows
from leasehold.core.leases.row_writes import Row, RowWrite, may_apply, was_applied
from leasehold.core.model import (
    HashRange,
    Lease,
    LeaseKey,
    LeaseSessionId,
    Shard,
    ShardId,
    StreamIdentifier,
    WorkerId,
)
from leasehold.core.position import Position
from leasehold.core.shards.lease_creation import CreateChildren
from leasehold.errors import MalformedRowError, NotFoundError, UnavailableError
from leasehold.fleet.table.coordinator_rows import CoordinatorRows
from leasehold.fleet.table.rejected_rows import RejectedRows
from leasehold.fleet.table.write_and_confirm import WRITE_ATTEMPTS_MAX, write_and_confirm
from leasehold.ports import Applied, Refused, RowStore
from leasehold.tasks import all_of

TRANSACTION_MAX: Final = 100  # writes of one transaction in DynamoDB


@dataclass(frozen=True, slots=True)
class Contended:
    """Another member wrote first. `current` is the lease as it is now; None if its row was deleted."""

    current: Lease | None


class LeaseTable:
    """The leases of one application."""

    def __init__(
        self, rows: RowStore, *, coordinator: RowStore | None = None, metrics: RowStore | None = None
    ) -> None:
        self._rows = rows
        self.rejected_rows = RejectedRows()
        self.coordinator_rows = CoordinatorRows(rows, coordinator=coordinator, metrics=metrics)

    async def prepare(self) -> None:
        """Create the table if it does not exist. Members may call this at the same time."""
        await self._rows.prepare()

    async def create_owner_index(self) -> None:
        """Create the index by which the members of a fleet with a leader find their leases."""
        await self._rows.create_owner_index()

    async def get(self, key: LeaseKey) -> Lease | None:
        """Read one lease."""
        return _lease(await self._rows.get(key))

    async def exists(self, key: LeaseKey) -> bool:
        """Whether the table has a row with this key, even one that cannot be parsed."""
        return await self._rows.get(key) is not None

    async def list(
        self, *, stream: StreamIdentifier | None = None, segments: int = 1, is_consistent: bool = False
    ) -> LeaseListing:
        """Read every lease, of one stream or of all, and the rows that cannot be parsed.

        May miss the newest writes, unless `is_consistent`: a decision that nobody reviews later needs that.
        """
        listing = leases_from_rows(await self._rows.scan(segments=segments, is_consistent=is_consistent))
        if stream is None:
            return listing
        return replace(listing, leases=tuple(lease for lease in listing.leases if lease.stream == stream))

    async def list_owned_by(self, worker: WorkerId, *, known: Collection[LeaseKey] = ()) -> LeaseListing:
        """Read the leases that `worker` owns or will own after a handoff, without the `known` ones.

        The index gives the keys. It may be stale, so each row is read again.
        """
        keys = await self._rows.keys_owned_by(worker)
        rows: Sequence[Row | None]
        if keys is None:
            rows = await self._rows.scan()
        else:
            rows = await all_of(*(self._rows.get(key) for key in keys if key not in known))
        listing = leases_from_rows(row for row in rows if row is not None)
        mine = (lease for lease in listing.leases if lease.owner == worker)
        return LeaseListing(tuple(lease for lease in mine if lease.key not in known), listing.rejected)

    async def create(self, lease: Lease) -> bool:
        """Create a free lease. Return False if it exists already, which serves as well.

        Sent once: if the response is lost, the caller must decide whether the lease still has to be created.
        """
        return isinstance(await self._rows.write(lease_rules.create(lease)), Applied)

    async def take(self, lease: Lease, by: WorkerId, session: LeaseSessionId) -> Lease | Contended:
        """Become the owner, if no member has written to the lease since it was read."""
        return await self._apply(lease_rules.take(lease, by, session))

    async def begin_session(self, lease: Lease, by: WorkerId, session: LeaseSessionId) -> Lease | Contended:
        """Begin to serve a lease that names us as its owner."""
        return await self._apply(lease_rules.begin_session(lease, by, session))

    async def renew(self, lease: Lease, throughput_kbps: Decimal | None = None) -> Lease | Contended:
        """Send a heartbeat. `lease_rules.interpret_failed_renewal` says what a refused one means."""
        return await self._apply(lease_rules.renew(lease, throughput_kbps))

    async def nudge(self, lease: Lease, nudge: str) -> Lease | Contended:
        """Make the owner of the lease refresh soon."""
        return await self._apply(lease_rules.nudge(lease, nudge))

    async def checkpoint(
        self, lease: Lease, at: Position, throughput_kbps: Decimal | None = None
    ) -> Lease | Contended:
        """Write that everything up to `at` is done."""
        return await self._apply(lease_rules.checkpoint(lease, at, throughput_kbps))

    async def prepare_checkpoint(
        self, lease: Lease, end: Position, state: bytes | None = None
    ) -> Lease | Contended:
        """Write the first half of a two-phase checkpoint."""
        return await self._apply(lease_rules.prepare(lease, end, state))

    async def pin(
        self,
        lease: Lease,
        end: Position,
        state: bytes | None = None,
        generation: tuple[str, int] | None = None,
    ) -> Lease | Contended:
        """Fix the end of the next batch, and promote the current pin if there is one. The first writer wins."""
        return await self._apply(lease_rules.pin(lease, end, state, generation))

    async def repin(
        self, lease: Lease, state: bytes, generation: tuple[str, int] | None = None
    ) -> Lease | Contended:
        """Begin to deliver a batch again that an earlier lease session pinned."""
        return await self._apply(lease_rules.repin(lease, state, generation))

    async def promote(self, lease: Lease) -> Lease | Contended:
        """Write that the pinned batch is done."""
        return await self._apply(lease_rules.promote(lease))

    async def stamp(self, lease: Lease, generation: tuple[str, int]) -> Lease | Contended:
        """Write the generation of a query that reads nothing from the shard."""
        return await self._apply(lease_rules.stamp(lease, generation))

    async def finish(self, lease: Lease, plan: CreateChildren) -> Lease | Contended:
        """Write the end of the shard and create the leases of its children, both or neither.

        It is one transaction. Otherwise a member that was suspended and has lost the lease could recreate the leases
        of children that other members have finished and deleted.
        """
        end = lease_rules.finish(lease, plan.children)
        for _ in range(WRITE_ATTEMPTS_MAX):
            present = [await self._rows.get(child.key) for child in plan.leases]
            new = [
                lease_rules.create(child)
                for child, row in zip(plan.leases, present, strict=True)
                if row is None
            ]
            try:
                done = await self._rows.write_transaction([*new, end])
            except UnavailableError:
                done = False
            row = await self._rows.get(lease.key)
            if was_applied(end, row):
                return _present(_lease(row), lease.key)
            if done:
                # The row has another owner by now. Its session must not become ours.
                return lease_rules.finished(lease, plan.children)
            if not may_apply(end, row):
                return Contended(_lease(row))
        raise UnavailableError(
            f"lease {lease.key}: its end could not be written in {WRITE_ATTEMPTS_MAX} attempts; "
            "the lease is still held, try again"
        )

    async def assign(self, lease: Lease, to: WorkerId) -> Lease | Contended:
        """As the leader, give a lease to a worker."""
        return await self._apply(lease_rules.assign(lease, to))

    async def request_handoff(self, lease: Lease, to: WorkerId) -> Lease | Contended:
        """Ask the owner to hand the lease to `to`."""
        return await self._apply(lease_rules.request_handoff(lease, to))

    async def complete_handoff(self, lease: Lease) -> Lease | Contended:
        """Pass a lease to the member that it was requested for."""
        return await self._apply(lease_rules.complete_handoff(lease))

    async def decline_handoff(self, lease: Lease) -> Lease | Contended:
        """Keep a requested lease, because the records in flight take too long."""
        return await self._apply(lease_rules.decline_handoff(lease))

    async def withdraw_handoff(self, lease: Lease) -> Lease | Contended:
        """Leave a lease that was requested to its owner."""
        return await self._apply(lease_rules.withdraw_handoff(lease))

    async def release(self, lease: Lease) -> Lease | Contended:
        """Release a lease on a clean stop."""
        return await self._apply(lease_rules.release(lease))

    async def release_to(self, lease: Lease, to: WorkerId) -> Lease | Contended:
        """Release a lease on a clean stop, and name its next owner."""
        return await self._apply(lease_rules.release_to(lease, to))

    async def set_children(self, lease: Lease, children: frozenset[ShardId]) -> Lease | Contended:
        """Write the children of a finished shard."""
        return await self._apply(lease_rules.set_children(lease, children))

    async def set_hash_range(self, lease: Lease, hash_range: HashRange) -> Lease | Contended:
        """Write the hash range of a lease that has none."""
        return await self._apply(lease_rules.set_hash_range(lease, hash_range))

    async def restart(self, lease: Lease, shard: Shard) -> bool:
        """Let a lease of an earlier stream begin anew. Return False if it has changed since it was read."""
        return isinstance(await write_and_confirm(self._rows, lease_rules.restart(lease, shard)), Applied)

    async def reset(self, lease: Lease, at: Position) -> Lease | Contended:
        """Move a lease that we hold to another position, and free it."""
        return await self._apply(lease_rules.reset(lease, at))

    async def reset_family(self, changes: Sequence[Lease | tuple[Lease, Position]]) -> bool:
        """Create leases, and reset leases that we hold (those with a position), all or none. Parents come first.

        More than a hundred writes are several transactions: an interruption leaves descendants where they were. Return
        False if a lease that we held is lost, or if one to create exists.
        """
        writes: list[RowWrite] = [
            lease_rules.create(each) if isinstance(each, Lease) else lease_rules.reset(*each)
            for each in changes
        ]
        for first in range(0, len(writes), TRANSACTION_MAX):
            if not await self._write_all(writes[first : first + TRANSACTION_MAX]):
                return False
        return True

    async def delete(self, lease: Lease) -> bool:
        """Delete a lease. Return False if it has changed since it was read."""
        return isinstance(await write_and_confirm(self._rows, lease_rules.delete(lease)), Applied)

    async def delete_unused(self, lease: Lease) -> bool:
        """Delete a lease that no member renews. Return False if a member has written to it since it was read."""
        return isinstance(await write_and_confirm(self._rows, lease_rules.delete_unused(lease)), Applied)

    async def close(self) -> None:
        """Close the stores."""
        await self._rows.close()
        await self.coordinator_rows.close()

    async def _write_all(self, writes: Sequence[RowWrite]) -> bool:
        for _ in range(WRITE_ATTEMPTS_MAX):
            with suppress(UnavailableError):
                if await self._rows.write_transaction(writes):
                    return True
            rows = await all_of(*(self._rows.get(write.key) for write in writes))
            found = list(zip(writes, rows, strict=True))
            if all(was_applied(write, row) for write, row in found):
                return True
            if not all(may_apply(write, row) for write, row in found):
                return False
        raise UnavailableError(
            f"lease {writes[0].key} and {len(writes) - 1} more could not be written in {WRITE_ATTEMPTS_MAX} attempts; "
            "try again"
        )

    async def _apply(self, write: RowWrite) -> Lease | Contended:
        outcome = await write_and_confirm(self._rows, write)
        if isinstance(outcome, Refused):
            return Contended(_lease(outcome.row))
        return _present(_lease(outcome.row), write.key)


def _lease(row: Row | None) -> Lease | None:
    if row is None:
        return None
    if not is_lease_row(row):
        raise MalformedRowError(
            str(row.get("leaseKey", {}).get("S", "")), "it is not a lease: its entityType is another"
        )
    return lease_from_row(row)


def _present(lease: Lease | None, key: str) -> Lease:
    if lease is None:
        raise NotFoundError(f"lease {key} was deleted right after it was written; was the table reset?")
    return lease


async def list_leases(table: LeaseTable, observe: Observer) -> LeaseListing:
    """Read all leases, and report rows that cannot be parsed."""
    listing = await table.list()
    table.rejected_rows.report(listing, observe)
    return listing
