"""Follows the streams that a listing or a function returns: asks again at an interval, adds and removes streams.

The records in flight of a removed stream are finished and checkpointed, then its leases are released. A failed listing
changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from leasehold.core.events import Observer, StreamsChanged
from leasehold.core.model import StreamIdentifier
from leasehold.core.shards.followed_streams import FoundStream, plan_stream_changes
from leasehold.fleet.held_leases import HeldLeases
from leasehold.fleet.operations import Operations
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.ports import Stream

FindStreams = Callable[[], Awaitable[Mapping[str, FoundStream]]]
OpenStream = Callable[[str, StreamIdentifier | None], Stream]


@dataclass(slots=True, kw_only=True)
class StreamDiscovery:
    """The streams of one member, as they are found now."""

    streams: Streams
    find: FindStreams
    open_stream: OpenStream
    every_ms: int
    _followed: dict[str, StreamIdentifier | None] = field(default_factory=dict)
    _removed: list[TrackedStream] = field(default_factory=list)
    _updating: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def update(self, observe: Observer) -> None:
        """Find the streams, and follow exactly those from now on. One at a time, so that an old answer that
        comes late does not undo a newer one.
        """
        async with self._updating:
            self._follow(await self.find(), observe)

    def _follow(self, found: Mapping[str, FoundStream], observe: Observer) -> None:
        changes = plan_stream_changes(self._followed, found)
        for name in changes.removed:
            self._removed.append(self.streams.remove(name))
            del self._followed[name]
        for name in changes.added:
            stream = self.open_stream(name, found[name].id)
            self.streams.add(TrackedStream(name, stream, found[name].initial))
            self._followed[name] = found[name].id
        if changes.added or changes.removed:
            observe(StreamsChanged(changes.added, changes.removed))

    async def run(self, held_leases: HeldLeases, operations: Operations) -> None:
        """Update at an interval, until cancelled."""
        while True:
            await operations.clock.sleep_ms(self.every_ms)
            await self.update_and_release(held_leases, operations)

    async def update_and_release(self, held_leases: HeldLeases, operations: Operations) -> None:
        """Update, and release the leases of removed streams. A failure is reported."""
        await operations.attempt("discover streams", partial(self.update, operations.observe))
        held_leases.drain_unless(self.streams.is_ours)
        await self._close_unused(held_leases)

    async def close(self) -> None:
        """Close all streams that were opened."""
        for each in (*self._removed, *self.streams.tracked):
            await each.stream.close()

    async def _close_unused(self, held_leases: HeldLeases) -> None:
        """Close removed streams once none of their leases is served: a shard may be read until then."""
        if self._removed and not held_leases.has_any_unless(self.streams.is_ours):
            removed, self._removed = self._removed, []
            for each in removed:
                await each.stream.close()
