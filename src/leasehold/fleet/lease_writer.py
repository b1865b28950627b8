"""Writes to one lease, and only while it is surely ours.

A lease is *valid* for a while after each successful write, counted on our own clock from before the write was sent.
Other members wait longer than that before they take it over. So a member that stops when its lease is no longer valid
stops in time, even if every request to the table is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from leasehold.core.events import LeaseLost
from leasehold.core.leases.heartbeats import LastWrite
from leasehold.core.leases.lease_rules import Lost, interpret_failed_renewal
from leasehold.core.model import Lease, WorkerId
from leasehold.errors import LeaseLostError, UnavailableError
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.lease_table import Contended
from leasehold.tasks import retry

# A refused write is repeated with the row as it is now. More refusals in a row than this are a bug.
_REFUSALS_MAX: Final = 20
_ATTEMPTS_MAX: Final = 20

Write = Callable[[Lease], Awaitable[Lease | Contended]]
# Receives the lease before and after each response of the table.
OnRow = Callable[[Lease, Lease], None]


class LeaseWriter:
    """The row of one lease during one lease session: one write at a time, none after the session has ended."""

    def __init__(
        self, lease: Lease, operations: Operations, *, valid_for_ms: int, taken_at_ms: int, on_row: OnRow
    ) -> None:
        self._lease = lease
        self._operations = operations
        self._valid_for_ms = valid_for_ms
        self._on_row = on_row
        self._lock = asyncio.Lock()
        self._last_write = LastWrite(taken_at_ms, is_first=True)
        self._unconfirmed_since_ms: int | None = (
            None  # since the first write of this counter that had no response
        )
        self._is_released = False
        self.lost = asyncio.Event()

    @property
    def lease(self) -> Lease:
        """The lease as it was last written or read here."""
        return self._lease

    @property
    def last_write(self) -> LastWrite:
        """The last successful write. Every write is a heartbeat."""
        return self._last_write

    @property
    def is_writing(self) -> bool:
        """Whether a write is in flight."""
        return self._lock.locked()

    @property
    def is_released(self) -> bool:
        """Whether the lease was released; nothing can be written after that."""
        return self._is_released

    def is_valid(self) -> bool:
        """Whether the lease is surely ours at this moment, judged by our own clock alone."""
        is_over = self._is_released or self.lost.is_set()
        return not is_over and self._operations.clock.now_ms() < self._valid_until_ms

    async def write(self, write: Write) -> None:
        """Write until the table responds, for as long as the lease is valid. Raises LeaseLostError after that."""
        clock, rng = self._operations.clock, self._operations.rng
        attempt = partial(self._attempt, write)
        async with self._lock:
            for _ in range(_REFUSALS_MAX):
                if await retry(attempt, clock=clock, rng=rng, attempts_max=_ATTEMPTS_MAX):
                    return
            raise UnavailableError(
                f"lease {self._lease.key}: {_REFUSALS_MAX} writes in a row were refused; try again"
            )

    async def release(self, write: Write) -> None:
        """Write for the last time: the write gives the lease away."""
        await self.write(write)
        self._is_released = True

    async def refresh(self, read: Callable[[], Awaitable[Lease | None]]) -> Lease:
        """Read the lease again. Raises LeaseLostError if it is no longer ours."""
        async with self._lock:
            self._require_valid()
            self._continue_with_row(await read())
        return self._lease

    def mark_lost(self, owner: WorkerId | None, reason: str) -> None:
        """The lease is no longer ours. Reported once."""
        if not self.lost.is_set():
            self.lost.set()
            self._operations.observe(LeaseLost(self._lease.key, self._lease.shard_id, owner, reason))

    async def wait_for_expiry(self) -> None:
        """Return, with the lease marked as lost, once no write has succeeded for too long."""
        while (left_ms := self._valid_until_ms - self._operations.clock.now_ms()) > 0:
            await self._operations.clock.sleep_ms(left_ms)
        self._mark_expired()

    def check_expiry(self, now_ms: int) -> None:
        """Mark the lease as lost if no write has succeeded for too long."""
        if now_ms >= self._valid_until_ms and not self._is_released:
            self._mark_expired()

    @property
    def _valid_until_ms(self) -> int:
        return self._last_write.at_ms + self._valid_for_ms

    async def _attempt(self, write: Write) -> bool:
        """Send one write. False if it was refused but the lease is still ours: then repeat it with the new row."""
        # Invariant: validity counts from before the request is sent, so the time is taken first. If an earlier write of
        # the same counter had no response, it may be the one that was applied, so its time counts.
        now_ms = self._require_valid()
        sent_ms = now_ms if self._unconfirmed_since_ms is None else self._unconfirmed_since_ms
        try:
            outcome = await write(self._lease)
        except BaseException:
            self._unconfirmed_since_ms = sent_ms
            raise
        if outcome is self._lease:
            return True  # there was nothing to write
        if isinstance(outcome, Lease):
            self._set_lease(outcome)
            self._last_write = LastWrite(sent_ms, is_first=False)
            return True
        self._continue_with_row(outcome.current)
        return False

    def _require_valid(self) -> int:
        now_ms = self._operations.clock.now_ms()
        if self._is_released:
            raise LeaseLostError(f"lease {self._lease.key} was released: nothing more can be written to it")
        if not self.is_valid():
            self._mark_expired()
            raise LeaseLostError(
                f"lease {self._lease.key} could not be renewed in time and may have another owner by now: stop "
                f"reading; its next owner reads the records after {self._lease.checkpoint} again"
            )
        return now_ms

    def _mark_expired(self) -> None:
        self.mark_lost(None, "could not be renewed in time")

    def _continue_with_row(self, current: Lease | None) -> None:
        """Continue with the row as it is now, if the lease is still ours."""
        meaning = interpret_failed_renewal(self._lease, current)
        if isinstance(meaning, Lost):
            if current is None:
                reason, fact = "its row was deleted", "was deleted from the lease table"
            elif meaning.holder is None:
                reason, fact = "its row names no owner", "now belongs to nobody"
            elif meaning.holder == self._lease.actual_owner:
                reason, fact = (
                    "it was assigned to this member again",
                    "has begun again: its session was ended",
                )
            else:
                reason, fact = "another member has it", f"now belongs to {meaning.holder}"
            self.mark_lost(meaning.holder, reason)
            raise LeaseLostError(
                f"lease {self._lease.key} {fact}: stop reading; "
                f"its next owner reads the records after {self._lease.checkpoint} again"
            )
        self._set_lease(meaning.lease)

    def _set_lease(self, lease: Lease) -> None:
        before, self._lease = self._lease, lease
        if lease.counter != before.counter:
            self._unconfirmed_since_ms = None  # its condition does not hold any more, if it still arrives
        self._on_row(before, lease)
