"""The streams of a member: one, or several whose leases share a table. Maps each lease to its stream.

In a table of several streams, a lease key begins with the identifier of its stream, which only DescribeStreamSummary
returns. So a stream is unknown until it was described, and a stream that does not respond does not keep the others from
being read. A member neither reads nor takes nor deletes leases of other streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from leasehold.core.model import InitialPosition, Lease, StreamIdentifier, have_same_stream_name
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
        self._tracked = tuple(tracked)
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
        return tuple(each.name for each in self._tracked)

    @property
    def tracked(self) -> tuple[TrackedStream, ...]:
        """The streams as they were configured, without their identifiers."""
        return self._tracked

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
        self._known.setdefault(found.id, found)
        return found

    def of(self, lease: Lease) -> TrackedStream | None:
        """The stream of a lease; None if it is not one of ours, or not identified yet."""
        return self._known.get(lease.stream)

    def ours(self, leases: Iterable[Lease]) -> tuple[Lease, ...]:
        """The leases of our streams."""
        return tuple(lease for lease in leases if lease.stream in self._known)
