"""Sequence numbers: 56 digits that rise within a shard, and from parents to children.

From the highest bit down, in the manner of Kinesis's own second layout:

    3 bits   the digit 2, which makes every number 56 digits long
    44 bits  epoch: milliseconds when the shard was made, pushed on so that every reshard has its own
    24 bits  index of the shard in its stream
    64 bits  counter: 0 is the shard's start, all ones its end, records lie between
    44 bits  arrival in milliseconds
    8 bits   version, 2

Epoch and index come first, so each shard owns one interval of numbers. A child's epoch is later than its
parents', so all its numbers are above all of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """The interval of sequence numbers that belongs to one shard, in whole and for ever.

    >>> parent, child = SequenceNumberRange.of_shard(1_700_000_000_000, 0), SequenceNumberRange.of_shard(1_700_000_000_001, 1)
    >>> parent.end(1_700_000_000_001) < child.start(1_700_000_000_001)
    True
    >>> len(str(parent.start(1_700_000_000_000)))
    56
    """

    base: int

    @classmethod
    def of_shard(cls, epoch_ms: int, shard_index: int) -> SequenceNumberRange:
        return cls(_PREFIX | epoch_ms << _EPOCH_SHIFT | shard_index << _INDEX_SHIFT | _VERSION)

    def __contains__(self, number: int) -> bool:
        return number >> _INDEX_SHIFT == self.base >> _INDEX_SHIFT

    def start(self, opened_ms: int) -> int:
        """The starting sequence number: below every record of the shard."""
        return self.at(0, opened_ms)

    def end(self, closed_ms: int) -> int:
        """The ending sequence number: above every record of the shard."""
        return self.at(_COUNTER_MAX, closed_ms)

    def at(self, counter: int, arrival_ms: int) -> int:
        return self.base | counter << _COUNTER_SHIFT | arrival_ms << _ARRIVAL_SHIFT
