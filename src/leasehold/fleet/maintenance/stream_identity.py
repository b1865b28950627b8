"""Notices that a stream was deleted and created again under its name, and reacts as the settings say.

With `fail`, the member stops with an error that names the stream, what shows it, and the remedy; nothing is changed.
With `start_over`, all leases begin at the oldest record of the new stream. Every write is conditional on the lease as
it was read: an owner that has written since then is not overruled, and the next check decides again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NoReturn

from leasehold.config.settings import FleetSettings, OnRecreatedStream
from leasehold.core.events import LeaseRestarted, ShardsSynced, StreamRecreated
from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.model import LeaseKey, Shard
from leasehold.core.shards.recreated_stream import Contradiction, find_contradictions, plan_start_over
from leasehold.core.shards.shard_graph import shard_graph
from leasehold.errors import RecreatedStreamError, ServiceError
from leasehold.fleet.operations import Operations
from leasehold.fleet.streams import TrackedStream
from leasehold.fleet.table.lease_table import LeaseTable

_STARTS_OVER: Final = "All leases start over at the oldest record"
_START_OVER: Final = (
    "Nothing was changed. To read the new stream from its oldest record, set on_recreated_stream='start_over' "
    "(Spark: onRecreatedStream) and restart; or use another application name, or delete the lease table"
)
_RESTART: Final = (
    "Nothing was changed. Restart this member: it then reads the new stream, whose leases have other keys, from its "
    "oldest record (a Spark query does so with onRecreatedStream=start_over)"
)


@dataclass(slots=True)
class StreamIdentity:
    """Compares the leases of one stream with its shards. Remembers what was seen and is not certain yet."""

    table: LeaseTable
    tracked: TrackedStream
    settings: FleetSettings
    operations: Operations
    _suspected: dict[LeaseKey, int] = field(default_factory=dict)

    async def check(
        self, listing: LeaseListing, shards: Sequence[Shard] | None = None, *, is_start: bool = False
    ) -> None:
        """Raise RecreatedStreamError, or start over, if leases belong to an earlier stream.

        A running member of several streams has read the identifier of the earlier stream, so it never starts over. At
        its start (`is_start`) it has just read the identifier, and leases that have the same one were given it by hand.
        `shards` must have been listed after the leases: then a shard that has ended is listed so.
        """
        leases = [lease for lease in listing.leases if lease.stream == self.tracked.id]
        if not leases:
            return
        if shards is None:
            shards = await self.tracked.stream.list_shards()
        found = self._confirm(find_contradictions(shards, leases, stream=self.tracked.id))
        if found:
            is_outdated = self.tracked.id is not None and not is_start
            problem = f"{await self._describe(found)}. "
            if self.settings.on_recreated_stream is OnRecreatedStream.FAIL or is_outdated:
                self._fail(problem + (_RESTART if is_outdated else _START_OVER))
            self.operations.observe(
                StreamRecreated(self.tracked.name, problem + _STARTS_OVER, is_fatal=False)
            )
            await self._start_over(found, listing, shards)

    def _confirm(self, found: Sequence[Contradiction]) -> list[Contradiction]:
        """The contradictions that are certain, or were seen by enough checks in a row."""
        self._suspected = {each.lease.key: self._suspected.get(each.lease.key, 0) + 1 for each in found}
        needed = self.settings.audit_confirmations
        return [each for each in found if each.is_certain or self._suspected[each.lease.key] >= needed]

    def _fail(self, problem: str) -> NoReturn:
        self.operations.observe(StreamRecreated(self.tracked.name, problem, is_fatal=True))
        raise RecreatedStreamError(problem)

    async def _describe(self, found: Sequence[Contradiction]) -> str:
        more = f" (and {len(found) - 1} more leases)" if len(found) > 1 else ""
        when = ""
        if (
            self.tracked.id is None
        ):  # the identifier of a member of several streams is that of the earlier stream
            with suppress(ServiceError, ValueError, OverflowError):  # only for the message
                seconds = int((await self.tracked.stream.get_identifier()).rpartition(":")[2])
                when = f" at {datetime.fromtimestamp(seconds, UTC).isoformat()}"
        return (
            f"stream {self.tracked.name} was deleted and created again{when}, and its leases belong to the earlier "
            f"stream: {found[0].fact}{more}"
        )

    async def _start_over(
        self, found: Sequence[Contradiction], listing: LeaseListing, shards: Sequence[Shard]
    ) -> None:
        clock, began_ms = self.operations.clock, self.operations.clock.now_ms()
        plan = plan_start_over(shard_graph(shards), listing.leases, found, stream=self.tracked.id)
        created = [await self.table.create(lease) for lease in plan.create]
        for lease, shard in plan.restart:
            if await self.table.restart(lease, shard):
                self.operations.observe(LeaseRestarted(lease.key, lease.checkpoint))
        self.operations.observe(ShardsSynced(len(shards), sum(created), clock.now_ms() - began_ms))
