"""Holes and overlaps at the edges of the hash range."""

from leasehold.core.model import HASH_KEY_MAX, WHOLE_HASH_RANGE, HashRange
from leasehold.core.shards.hash_coverage import Hole, first_hole, first_overlap


def test_nothing_leaves_everything() -> None:
    """Without ranges the whole of what was asked for is missing."""
    assert first_hole([]) == Hole(0, HASH_KEY_MAX)
    assert first_hole([], within=HashRange(3, 4)) == Hole(3, 4)


def test_only_what_was_asked_for_counts() -> None:
    """Ranges that lie outside, or reach over the edges, neither make nor fill a hole inside."""
    within = HashRange(10, 20)
    assert first_hole([HashRange(0, 15), HashRange(16, 99)], within) is None
    assert first_hole([HashRange(0, 20), HashRange(40, 50)], within) is None
    assert first_hole([HashRange(0, 9), HashRange(21, 30)], within) == Hole(10, 20)
    assert first_hole([HashRange(0, 15), HashRange(30, 40)], within) == Hole(16, 20)


def test_a_hole_of_the_last_key() -> None:
    """One key at the end of the stream is a hole like any other."""
    assert first_hole([HashRange(0, HASH_KEY_MAX - 1)]) == Hole(HASH_KEY_MAX, HASH_KEY_MAX)


def test_equal_ranges_overlap() -> None:
    """Two shards with the same range are not one."""
    assert first_overlap([WHOLE_HASH_RANGE, WHOLE_HASH_RANGE]) == (WHOLE_HASH_RANGE, WHOLE_HASH_RANGE)


def test_neighbours_do_not_overlap() -> None:
    """The end is inclusive, so the next one begins one higher."""
    assert first_overlap([HashRange(50, 99), HashRange(0, 49)]) is None
