"""Which hash keys are nobody's, and which are claimed twice.

Reads ranges, in any order, and finds the first gap or the first overlap. Does not know whose ranges they are:
a list of shards must have neither gap nor overlap, the leases of a fleet may overlap while parents and
children are both read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from leasehold.core.model import WHOLE_HASH_RANGE, HashRange


@dataclass(frozen=True, slots=True, order=True)
class Hole:
    """Hash keys that nobody covers, from `first` to `last`; both are missing, and may be the same key."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}..{self.last}"


def first_hole(ranges: Iterable[HashRange], within: HashRange = WHOLE_HASH_RANGE) -> Hole | None:
    """The lowest run of hash keys inside `within` that none of the ranges covers. Overlaps are fine.

    >>> first_hole([HashRange(6, 9), HashRange(0, 3), HashRange(2, 4)], within=HashRange(0, 9))
    Hole(first=5, last=5)
    """
    next_key = within.start
    for each in sorted(ranges):
        if next_key > within.end:
            break
        if each.start > next_key:
            return Hole(next_key, min(each.start - 1, within.end))
        next_key = max(next_key, each.end + 1)
    return Hole(next_key, within.end) if next_key <= within.end else None


def first_overlap(ranges: Iterable[HashRange]) -> tuple[HashRange, HashRange] | None:
    """Two of the ranges that share a hash key, the lowest such pair.

    >>> first_overlap([HashRange(5, 9), HashRange(0, 5)])
    (HashRange(start=0, end=5), HashRange(start=5, end=9))
    """
    return next((pair for pair in pairwise(sorted(ranges)) if pair[1].start <= pair[0].end), None)
