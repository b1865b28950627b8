"""The streams of a member: one, or several whose leases share a table. Says which leases are theirs, and where each
stream is read and begins.

In a table of several the key of a lease begins with the identifier of its stream, which only the stream itself can
tell. So a stream is not known before it was asked, and one that does not answer keeps none of the others from being
read. Leases of streams that are not ours are none of our business: they are neither read nor taken nor deleted.
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
    """One stream, and where it begins as long as it has no leases. Without an `id`, its leases carry no prefix."""

    name: str
    stream: Stream
    initial: InitialPosition
    id: StreamIdentifier | None = None


class Streams:
    """All streams of one member. With `is_multi_stream` the keys of their leases name the stream, even of a single one."""

    def __init__(self, tracked: Sequence[TrackedStream], *, is_multi_stream: bool) -> None:
        self._tracked = tuple(tracked)
        self.is_multi_stream = is_multi_stream
        self._known: dict[StreamIdentifier | None, TrackedStream] = {}
        if not is_multi_stream:
            (only,) = tracked
            self._known[None] = only

    @classmethod
    def single(cls, stream: Stream, name: str, initial: InitialPosition) -> Self:
        """The stream of a member that has no other, and never will."""
        return cls([TrackedStream(name, stream, initial)], is_multi_stream=False)

    @property
    def names(self) -> tuple[str, ...]:
        """What the streams are called, in the order of the settings."""
        return tuple(each.name for each in self._tracked)

    @property
    def tracked(self) -> tuple[TrackedStream, ...]:
        """The streams as they were given, whether known or not."""
        return self._tracked

    async def identify(self, tracked: TrackedStream) -> TrackedStream:
        """A stream with its identifier; from then on it is known which leases are its own."""
        if not self.is_multi_stream:
            return tracked
        identifier = await tracked.stream.identifier()
        found = replace(tracked, id=identifier)
        for known in self._known.values():
            if (
                known.name != found.name
                and known.id is not None
                and have_same_stream_name(known.id, identifier)
            ):
                raise ConfigError(
                    f"streams {known.name} and {found.name} are one and the same, {known.id} and {found.id}: name it "
                    "once; each of its records would be read twice"
                )
        self._known.setdefault(found.id, found)
        return found

    def of(self, lease: Lease) -> TrackedStream | None:
        """The stream that a lease belongs to; None if that is not ours, or not known yet."""
        return self._known.get(lease.stream)

    def ours(self, leases: Iterable[Lease]) -> tuple[Lease, ...]:
        """The leases of our streams."""
        return tuple(lease for lease in leases if lease.stream in self._known)
