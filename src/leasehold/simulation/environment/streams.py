"""The streams of a run: which of them exist, and which of them the fleet should read.

Most runs have one stream. In the others, lease keys begin with the identifier of a stream, as in the KCL's multi-stream
mode. A shard is named by the key of its lease, because shards of two streams have the same ids.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final

from leasehold.core.model import (
    LeaseKey,
    ShardId,
    StreamIdentifier,
    lease_key,
    parse_lease_key,
    stream_identifier,
)
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.shard import ShardState
from leasehold.kinesis_model.stream import StreamState
from leasehold.ports import Clock
from leasehold.simulation.virtual_time import START_WALL_MS

STREAM: Final = "orders"  # the first stream, and the prefix of the names of all others
_STREAMS_MAX: Final = 4


class StreamChoice(Enum):
    """How the members of a run know their streams. The value is its name in `--streams`."""

    ONE = "one"
    SEVERAL = "several"  # a fixed list
    LISTED = "listed"  # all streams of the account with a prefix; streams are created and deleted
    FUNCTION = "function"  # a function of the user, which leaves streams out for a while

    @property
    def is_discovering(self) -> bool:
        """Whether the streams change while members run."""
        return self in {StreamChoice.LISTED, StreamChoice.FUNCTION}


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The streams of a run."""

    choice: StreamChoice
    more_shards: tuple[int, ...] = ()  # the number of shards of each stream after the first
    delete_former_after: timedelta | None = None


ONE_STREAM: Final = StreamPlan(StreamChoice.ONE)


class StreamListError(Exception):
    """Raised by a user's function that lists streams."""


class SimulatedStreams:
    """All streams of the account, with their true state."""

    def __init__(
        self, kinesis: KinesisModel, clock: Clock, plan: StreamPlan, *, shards: int, rng: random.Random
    ) -> None:
        self.kinesis = kinesis
        self.plan = plan
        self.unlisted: set[str] = set()  # they exist, and the user's function does not name them
        self.abandoned: set[str] = set()  # not named until the end of the run
        self.failing_lists = 0.0  # the share of its calls in which the user's function fails
        self.on_created: Callable[[str], None] = lambda _: None
        self._clock = clock
        self._rng = rng
        self._ids: dict[str, StreamIdentifier | None] = {}
        self._states: dict[StreamIdentifier | None, StreamState] = {}
        for number, count in enumerate((shards, *plan.more_shards)):
            self.create(self.next_name() if number else STREAM, count, START_WALL_MS)

    @property
    def names(self) -> Sequence[str]:
        """The streams that exist."""
        return self.kinesis.stream_names(self._clock.wall_ms())

    @property
    def followed(self) -> Sequence[str]:
        """The streams that the fleet should read."""
        return [name for name in self.names if name not in self.unlisted]

    @property
    def followed_ids(self) -> Mapping[StreamIdentifier | None, str]:
        """The names of the streams that the fleet should read, by their identifiers. None: the only stream."""
        return {self.id_of(name): name for name in self.followed}

    def list_names(self) -> Sequence[str]:
        """Return the followed streams, as a function of the user that may fail."""
        if self.failing_lists and self._rng.random() < self.failing_lists:
            raise StreamListError
        return self.followed

    def state(self, name: str) -> StreamState:
        """Return the current state of a stream."""
        return self.kinesis.stream(self._clock.wall_ms(), name)

    def id_of(self, name: str) -> StreamIdentifier | None:
        """Return the identifier of a stream, which may have been deleted. No two streams have the same name."""
        return self._ids[name]

    def key_of(self, name: str, shard: str) -> LeaseKey:
        """Return the key of a shard."""
        return lease_key(ShardId(shard), self.id_of(name))

    def find_shard(self, key: LeaseKey) -> ShardState | None:
        """Return a shard, also of a deleted stream; None if it has left its stream."""
        stream, shard = parse_lease_key(key)
        state = self._states.get(stream)
        return None if state is None else state.shards.get(shard)

    def key_of_number(self, name: str, number: int) -> LeaseKey | None:
        """Return the shard of a stream to which a sequence number belongs."""
        for shard in self._states[self.id_of(name)].shards.values():
            if number in shard.numbers:
                return self.key_of(name, shard.id)
        return None

    def may_create(self) -> bool:
        """Return whether the account may have one more stream."""
        return len(self.names) < _STREAMS_MAX

    def next_name(self) -> str:
        """Return a name that no stream had before."""
        return f"{STREAM}-{len(self._ids)}"

    def leave_out(self, name: str) -> None:
        """Let the user's function leave a stream out for ever. Nothing is produced to it any more."""
        self.unlisted.add(name)
        self.abandoned.add(name)

    def create(self, name: str, shards: int, wall_ms: int) -> None:
        """Create a stream."""
        self.kinesis.create_stream(wall_ms, name, shard_count=shards)
        state = self.kinesis.stream(wall_ms, name)
        identifier = None
        if self.plan.choice is not StreamChoice.ONE:
            identifier = stream_identifier(self.kinesis.account.id, name, state.created_ms // 1000)
        self._ids[name] = identifier
        self._states[identifier] = state
        self.on_created(name)

    def delete(self, name: str) -> None:
        """Delete a stream with its records and consumers."""
        self.kinesis.delete_stream(self._clock.wall_ms(), name, with_consumers=True)
