"""The streams of a member: one, or several whose leases share a table. Maps each lease to its stream.

The streams of a member that discovers them change while it runs (`stream_discovery`).

In a table of several streams, a lease key begins with the identifier of its stream, which only DescribeStreamSummary
returns. So a stream is unknown until it was described, and a stream that does not respond does not keep the others from
being read. A member neither reads nor takes nor deletes leases of other streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Self

from leasehold.core.model import InitialPosition, Lease, StreamIdentifier, have_same_stream_name
from leasehold.core.position import TRIM_HORIZON
from leasehold.errors import ConfigError
from leasehold.ports import Stream


@dataclass(frozen=True, slots=True)
class TrackedStream:
    """One stream, and where reading starts if it has no leases. Without an `id`, its lease keys have no prefix."""

    name: str
    stream: Stream
    initial: InitialPosition
    id: StreamIdentifier | None = None


class Streams:
    """All streams of one member.

    With `is_multi_stream`, the KCL's multi-stream mode, lease keys carry the identifier of the stream.
    """

    def __init__(self, tracked: Sequence[TrackedStream], *, is_multi_stream: bool) -> None:
        self._tracked = {each.name: each for each in tracked}
        self.changed = asyncio.Event()  # set when streams were added or removed
        self.is_multi_stream = is_multi_stream
        self._known: dict[StreamIdentifier | None, TrackedStream] = {}
        if not is_multi_stream:
            (only,) = tracked
            self._known[None] = only

    @classmethod
    def single(cls, stream: Stream, name: str, initial: InitialPosition) -> Self:
        """The stream of a member in single-stream mode."""
        return cls([TrackedStream(name, stream, initial)], is_multi_stream=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the streams, in the order of the settings."""
        return tuple(self._tracked)

    @property
    def tracked(self) -> tuple[TrackedStream, ...]:
        """The streams as they were configured or discovered, without the identifiers that were read from Kinesis."""
        return tuple(self._tracked.values())

    @property
    def known(self) -> tuple[TrackedStream, ...]:
        """The streams whose leases are known: all that were identified, or the only stream."""
        return tuple(self._known.values())

    @property
    def identifiers(self) -> AbstractSet[StreamIdentifier]:
        """The identifiers of the streams, as far as they are known."""
        return {each for each in self._known if each is not None}

    def add(self, tracked: TrackedStream) -> None:
        """Follow one more stream. Its leases are ours as soon as it is identified."""
        self._tracked[tracked.name] = tracked
        self.changed.set()

    def remove(self, name: str) -> TrackedStream:
        """Follow a stream no longer. Its leases are not ours from now on."""
        removed = self._tracked.pop(name)
        self._known = {key: each for key, each in self._known.items() if each.stream is not removed.stream}
        self.changed.set()
        return removed

    def knows(self, identifier: StreamIdentifier | None) -> bool:
        """Whether the stream with this identifier is still followed."""
        return identifier in self._known

    def has(self, tracked: TrackedStream) -> bool:
        """Whether this stream, as it was identified, is still followed."""
        return self._known.get(tracked.id) == tracked

    async def identify(self, tracked: TrackedStream) -> TrackedStream:
        """Read the identifier of a stream. From then on its leases are known as ours."""
        if not self.is_multi_stream:
            return tracked
        identifier = await tracked.stream.get_identifier()
        found = replace(tracked, id=identifier)
        for known in self._known.values():
            if known.id is None or known.name == found.name:
                continue
            if have_same_stream_name(known.id, identifier):
                raise ConfigError(
                    f"streams {known.name} and {found.name} are the same stream, {known.id} and {found.id}: "
                    "configure it once; otherwise each of its records is read twice"
                )
        if self._tracked.get(tracked.name) is tracked:  # otherwise it was removed meanwhile
            self._known.setdefault(found.id, found)
        return found

    def start_at_oldest_record(self, identifier: StreamIdentifier) -> None:
        """Let a stream that is known begin at its oldest record if it has no leases. Call it before it is joined."""
        found = replace(self._known[identifier], initial=InitialPosition(TRIM_HORIZON))
        self._known[identifier] = found
        self._tracked[found.name] = replace(found, id=None)

    def of(self, lease: Lease) -> TrackedStream | None:
        """The stream of a lease; None if it is not one of ours, or not identified yet."""
        return self._known.get(lease.stream)

    def ours(self, leases: Iterable[Lease]) -> tuple[Lease, ...]:
        """The leases of our streams."""
        return tuple(lease for lease in leases if self.is_ours(lease))

    def is_ours(self, lease: Lease) -> bool:
        """Whether a lease belongs to one of our streams."""
        return lease.stream in self._known
