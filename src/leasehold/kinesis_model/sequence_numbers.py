"""Sequence numbers: 56 digits that increase within a shard, and from parents to children.

The layout, from the highest bit down, follows the second layout of Kinesis itself:

    3 bits   the digit 2, which makes every number 56 digits long
    44 bits  epoch: the shard's creation time in milliseconds, increased so that every reshard has its own
    24 bits  index of the shard in its stream
    64 bits  counter: 0 marks the shard's start, all ones its end; records are numbered in between
    44 bits  arrival time in milliseconds
    8 bits   version, always 2

Epoch and index come first, so each shard owns one interval of numbers. A child has a later epoch than its parents, so
all its numbers are higher than theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_VERSION: Final = 2
_ARRIVAL_SHIFT: Final = 8
_COUNTER_SHIFT: Final = _ARRIVAL_SHIFT + 44
_INDEX_SHIFT: Final = _COUNTER_SHIFT + 64
_EPOCH_SHIFT: Final = _INDEX_SHIFT + 24
_PREFIX: Final = 2 << (_EPOCH_SHIFT + 44)
_COUNTER_MAX: Final = 2**64 - 1
SHARDS_MAX: Final = 2**24


@dataclass(frozen=True, slots=True)
class SequenceNumberRange:
    """The interval of sequence numbers that belongs to one shard. It never changes.

    >>> parent, child = SequenceNumberRange(1_700_000_000_000, 0), SequenceNumberRange(1_700_000_000_001, 1)
    >>> parent.end(1_700_000_000_001) < child.start(1_700_000_000_001)
    True
    >>> len(str(parent.start(1_700_000_000_000)))
    56
    """

    epoch_ms: int
    shard_index: int
    _base: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        base = _PREFIX | self.epoch_ms << _EPOCH_SHIFT | self.shard_index << _INDEX_SHIFT | _VERSION
        object.__setattr__(self, "_base", base)

    def __contains__(self, number: int) -> bool:
        return number >> _INDEX_SHIFT == self._base >> _INDEX_SHIFT

    def start(self, opened_ms: int) -> int:
        """The starting sequence number of the shard: lower than that of every record."""
        return self.at(0, opened_ms)

    def end(self, closed_ms: int) -> int:
        """The ending sequence number of the shard: higher than that of every record."""
        return self.at(_COUNTER_MAX, closed_ms)

    def at(self, counter: int, arrival_ms: int) -> int:
        """The sequence number of the record with this counter and arrival time."""
        return self._base | counter << _COUNTER_SHIFT | arrival_ms << _ARRIVAL_SHIFT
