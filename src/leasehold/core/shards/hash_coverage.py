"""Finds hash keys that no range covers, and hash keys that two ranges cover.

A list of open shards must have neither holes nor overlaps. The leases of a fleet may overlap while parents and children
are both read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from leasehold.core.model import WHOLE_HASH_RANGE, HashRange


@dataclass(frozen=True, slots=True, order=True)
class Hole:
    """Hash keys that no range covers, from `first` to `last` inclusive."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}..{self.last}"


def first_hole(ranges: Iterable[HashRange], within: HashRange = WHOLE_HASH_RANGE) -> Hole | None:
    """The lowest hole inside `within`; None if the ranges cover it. Overlaps are allowed.

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
    """The lowest pair of ranges that share a hash key; None if there is none.

    >>> first_overlap([HashRange(5, 9), HashRange(0, 5)])
    (HashRange(start=0, end=5), HashRange(start=5, end=9))
    """
    return next((pair for pair in pairwise(sorted(ranges)) if pair[1].start <= pair[0].end), None)
