"""A stream that is not read any more is given back, and its leases are deleted only as the settings say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leasehold.config.settings import milliseconds
from leasehold.core.leases.lease_row import COUNTER
from leasehold.core.model import Lease, LeaseKey
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.ownership import LeaseChange
from leasehold.simulation.environment.process import SimulatedProcess

# For the handlers that still run: they finish their batch first.
_HANDLERS_MS: Final = 40_000
# About two members, chosen at random, clean up each time, and one of them must be chosen twice.
_CLEANUPS_MAX: Final = 30


def former_leases(world: WorldView) -> Sequence[Lease]:
    """Return the leases of streams that the fleet should not read."""
    followed = world.services.streams.followed_ids
    return [lease for lease in world.services.leases() if lease.stream not in followed]


def has_former_leases(world: WorldView) -> bool:
    """Return whether leases of former streams are still to be deleted."""
    return world.settings.fleet.delete_former_streams_after is not None and bool(former_leases(world))


class FormerStreams(Checker):
    """Follows the leases of streams that were deleted, or that are not listed."""

    promise = "former-streams-are-given-back"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._faults_ended_ms: int | None = None
        self._written_ms: dict[LeaseKey, int] = {}

    def faults_ended(self) -> None:
        self._faults_ended_ms = self.world.now_ms()

    def lease_changed(self, change: LeaseChange) -> None:
        row, before, key = change.row, change.before, LeaseKey(change.row.key)
        if row.by is not None and before and before.stream not in self.world.services.streams.followed_ids:
            if row.after is None:
                self._check_deletion(row.by, before, row.at_ms)
            elif self._has_passed_since_faults(self._given_back_within_ms()):
                self.report(f"{row.by.name} still writes to {key}, whose stream is not read any more")
        # A nudge to an owner that may be dead is no use of the lease.
        if (row.before or {}).get(COUNTER) != (row.after or {}).get(COUNTER):
            self._written_ms[key] = row.at_ms

    def time_passed(self) -> None:
        fleet = self.world.settings.fleet
        if fleet.delete_former_streams_after is None:
            return
        kept_ms = milliseconds(fleet.delete_former_streams_after + _CLEANUPS_MAX * fleet.clean_up_every)
        if self._has_passed_since_faults(self._given_back_within_ms() + kept_ms):
            for lease in former_leases(self.world):
                self.report(f"{lease.key} of a former stream still exists")

    def _check_deletion(self, by: SimulatedProcess, lease: Lease, at_ms: int) -> None:
        wait = self.world.settings.fleet.delete_former_streams_after
        unchanged_ms = at_ms - self._written_ms.get(lease.key, 0)
        if lease.checkpoint.is_shard_end:
            return  # a cleanup may have begun before its stream disappeared
        if wait is None:
            self.report(f"{by.name} deleted {lease.key} of a former stream, although the settings keep it")
        elif unchanged_ms < milliseconds(wait):
            self.report(f"{by.name} deleted {lease.key}, which was written to {unchanged_ms} ms before")

    def _given_back_within_ms(self) -> int:
        return 2 * milliseconds(self.world.settings.identity.discover_streams_every) + _HANDLERS_MS

    def _has_passed_since_faults(self, duration_ms: int) -> bool:
        ended_ms = self._faults_ended_ms
        return ended_ms is not None and self.world.now_ms() - ended_ms > duration_ms
