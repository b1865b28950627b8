"""Random histories of a stream: splits and merges of neighbours, and the trimming of old shards.

Only what Kinesis can do happens here, so the open shards always cover every hash key exactly once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st

from leasehold.core.model import HASH_KEY_MAX, ChildShard, HashRange, InitialPosition, Shard, ShardId
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON

T = TypeVar("T")

POSITIONS = (InitialPosition(LATEST), InitialPosition(TRIM_HORIZON), InitialPosition(AT_TIMESTAMP, 1))


def cases(count: int) -> settings:
    """So many cases, and the same ones in every run."""
    return settings(max_examples=count, derandomize=True, database=None, deadline=None)


class Choices:
    """A tape of random bytes that is asked for one choice after the other, and says 0 when it has run out.

    One draw for a whole case: many times faster than a draw for each choice, and it still shrinks to a short
    story.
    """

    def __init__(self, tape: bytes) -> None:
        self._tape = iter(tape)

    def below(self, end: int) -> int:
        return next(self._tape, 0) % end

    def one_of(self, things: Sequence[T]) -> T:
        return things[self.below(len(things))]

    def some_of(self, things: Sequence[T], *, one_in: int = 2) -> list[T]:
        return [thing for thing in things if self.below(one_in) == 1]


choices = st.binary(min_size=64, max_size=64).map(Choices)


@dataclass
class StreamHistory:
    """A stream that is resharded. `born` is every shard there ever was, `shards` what a list shows now."""

    born: dict[ShardId, Shard] = field(default_factory=dict)
    trimmed: set[ShardId] = field(default_factory=set)
    epoch: int = 1

    @property
    def shards(self) -> list[Shard]:
        return [shard for shard in self.born.values() if shard.id not in self.trimmed]

    @property
    def open_shards(self) -> list[Shard]:
        """From the lowest hash keys to the highest, so that neighbours stand side by side."""
        return sorted((s for s in self.born.values() if s.is_open), key=lambda shard: shard.hash_range)

    @property
    def horizon(self) -> int:
        """The first epoch of which every shard is still listed."""
        gone = (int(self.born[shard_id].ending_sequence_number or 0) for shard_id in self.trimmed)
        return max(gone, default=0) + 1

    def begin(self, count: int) -> None:
        bounds = [HASH_KEY_MAX * i // count for i in range(count)] + [HASH_KEY_MAX + 1]
        for first, after in pairwise(bounds):
            self._open(HashRange(first, after - 1), ())

    def reshard(self, *, merge: bool, pick: int) -> None:
        if merge and len(self.open_shards) > 1:
            left = pick % (len(self.open_shards) - 1)
            self._merge(*self.open_shards[left : left + 2])
        else:
            self._split(self.open_shards[pick % len(self.open_shards)])

    def trim(self, shard_id: ShardId) -> None:
        assert not self.born[shard_id].is_open
        self.trimmed.add(shard_id)

    def children_of(self, shard_id: ShardId) -> list[ChildShard]:
        """What the last answer of a closed shard names."""
        return [
            ChildShard(s.id, s.parents, s.hash_range) for s in self.born.values() if shard_id in s.parents
        ]

    def alive_at(self, epoch: int) -> list[Shard]:
        """The shards that were open in an epoch: what a filtered list shows."""
        return [
            shard
            for shard in self.shards
            if int(shard.starting_sequence_number) <= epoch <= int(shard.ending_sequence_number or epoch)
        ]

    def _split(self, parent: Shard) -> None:
        keys = parent.hash_range
        if keys.end - keys.start < 3:
            return
        middle = (keys.start + keys.end) // 2
        self._close([parent])
        self._open(HashRange(keys.start, middle), (parent.id,))
        self._open(HashRange(middle + 1, keys.end), (parent.id,))

    def _merge(self, left: Shard, right: Shard) -> None:
        self._close([left, right])
        self._open(HashRange(left.hash_range.start, right.hash_range.end), (left.id, right.id))

    def _close(self, shards: Iterable[Shard]) -> None:
        for shard in shards:
            self.born[shard.id] = replace(shard, ending_sequence_number=str(self.epoch))
        self.epoch += 1

    def _open(self, keys: HashRange, parents: tuple[ShardId, ...]) -> None:
        # Numbers of different length, so that whoever compares them as text is found out.
        shard_id = ShardId(f"shardId-{len(self.born)}")
        self.born[shard_id] = Shard(shard_id, keys, str(self.epoch), parents=parents)


def epoch_of(initial: InitialPosition, history: StreamHistory, choices: Choices) -> int:
    """The moment that an initial position means; a time may be any that is retained."""
    some_time = history.horizon + choices.below(1 + history.epoch - history.horizon)
    return {LATEST: history.epoch, TRIM_HORIZON: history.horizon}.get(initial.sentinel, some_time)


def random_history(choices: Choices, *, reshards_max: int = 9) -> StreamHistory:
    """A stream with some reshards behind it, and perhaps with its oldest shards trimmed."""
    history = StreamHistory()
    history.begin(1 + choices.below(4))
    for _ in range(choices.below(reshards_max + 1)):
        history.reshard(merge=choices.below(2) == 1, pick=choices.below(8))
    horizon = choices.below(history.epoch + 1)
    for shard in history.shards:
        if not shard.is_open and int(shard.ending_sequence_number or 0) < horizon:
            history.trim(shard.id)
    return history
