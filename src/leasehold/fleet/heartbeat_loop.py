"""Renews the leases of a member, one after the other and evenly spaced. `core.leases.heartbeats` decides the order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from leasehold.core.events import LeasesRenewed
from leasehold.core.leases.heartbeats import LastWrite, leases_to_renew, tick_ms
from leasehold.core.model import LeaseKey
from leasehold.errors import LeaseholdError, LeaseLostError
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.operations import Operations


@dataclass(slots=True)
class _Round:
    """The heartbeats of one interval, for the event that reports them."""

    began_ms: int
    failed: list[HeldLease] = field(default_factory=list)  # once for each heartbeat that failed
    time_ms: int = 0


class HeartbeatLoop:
    """Sends the heartbeats of all leases in `held`, which may change at any time."""

    def __init__(
        self,
        held: Mapping[LeaseKey, HeldLease],
        renew_ms: int,
        operations: Operations,
        group: asyncio.TaskGroup,
    ) -> None:
        self._held = held
        self._renew_ms = renew_ms
        self._operations = operations
        self._group = group
        self._in_flight: set[HeldLease] = set()
        self._round = _Round(operations.clock.now_ms())

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        clock = self._operations.clock
        while True:
            await clock.sleep_ms(tick_ms(len(self._held), self._renew_ms))
            now_ms = clock.now_ms()
            # If the machine was suspended, the timer that waits for the expiry of a lease stopped meanwhile. A tick is
            # shorter, so the member soon stops to serve leases that other members may have taken.
            writes: dict[LeaseKey, LastWrite] = {}
            for key, held in self._held.items():
                held.check_expiry(now_ms)
                if self._may_renew(held):
                    writes[key] = held.last_write
            for key in leases_to_renew(writes, now_ms, self._renew_ms):
                # A task of its own: a slow heartbeat must not delay those of the other leases.
                self._group.create_task(self._send(self._held[key]))
            if now_ms - self._round.began_ms >= self._renew_ms:
                self._report_round(now_ms)

    def renew_now(self, held: HeldLease) -> None:
        """Send a heartbeat outside the rhythm; its response shows the lease as it is now."""
        self._group.create_task(self._renew(held))

    def _may_renew(self, held: HeldLease) -> bool:
        is_given_up = held.lost.is_set() or held.stalled.is_set()
        return not (held in self._in_flight or held.is_writing or is_given_up)

    async def _send(self, held: HeldLease) -> None:
        began_ms = self._operations.clock.now_ms()
        self._in_flight.add(held)
        try:
            is_renewed = await self._renew(held)
        finally:
            self._in_flight.discard(held)
        if not is_renewed:
            self._round.failed.append(held)
        self._round.time_ms = max(self._round.time_ms, self._operations.clock.now_ms() - began_ms)

    async def _renew(self, held: HeldLease) -> bool:
        """Send one heartbeat, unless the shard has stalled. Return whether the lease was renewed."""
        if held.is_idle_too_long:
            held.mark_stalled()
            return False
        try:
            await held.renew()
        except LeaseLostError:
            return False  # reported when the lease was marked as lost
        except LeaseholdError as error:
            self._operations.report_failure(f"renew {held.lease.key}", error)
            return False
        return True

    def _report_round(self, now_ms: int) -> None:
        over, self._round = self._round, _Round(now_ms)
        # A lease that was lost is no longer held.
        failed = set(over.failed)
        renewed = sum(held not in failed for held in self._held.values())
        self._operations.observe(LeasesRenewed(renewed, len(over.failed), over.time_ms))
