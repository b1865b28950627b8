"""Holes and overlaps against counting key by key, in a small key space."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.model import HashRange
from leasehold.core.shards.hash_coverage import Hole, first_hole, first_overlap
from leasehold.core.shards.lease_audit import Sightings, next_sightings
from tests.properties.reshard_histories import Choices, cases, choices, random_history

SPACE = HashRange(2, 21)

ranges = st.lists(
    st.builds(lambda start, length: HashRange(start, start + length), st.integers(0, 22), st.integers(1, 9)),
    max_size=6,
)


@cases(1000)
@given(ranges)
def test_the_first_hole_is_the_first_missing_key_and_its_run(ranges: Sequence[HashRange]) -> None:
    """A key is in the hole exactly if nobody has it, and every lower key has somebody."""
    missing = [key for key in range(SPACE.start, SPACE.end + 1) if not any(key in each for each in ranges)]
    hole = first_hole(ranges, within=SPACE)
    assert (hole is None) == (not missing)
    if hole:
        run = range(hole.first, hole.last + 1)
        assert hole.first == missing[0]
        assert set(run) <= set(missing)
        assert hole.last + 1 not in missing


@cases(1000)
@given(ranges)
def test_an_overlap_is_found_exactly_when_a_key_is_held_twice(ranges: Sequence[HashRange]) -> None:
    """And the two that are named share a key."""
    twice = any(sum(key in each for each in ranges) > 1 for key in range(32))
    overlap = first_overlap(ranges)
    assert (overlap is not None) == twice
    if overlap:
        lower, upper = overlap
        assert upper.start in lower


@cases(1000)
@given(choices)
def test_the_open_shards_of_any_history_are_whole(choices: Choices) -> None:
    """Neither a hole nor an overlap, whatever was split and merged."""
    ranges = [shard.hash_range for shard in random_history(choices).open_shards]
    assert (first_hole(ranges), first_overlap(ranges)) == (None, None)


@cases(1000)
@given(st.lists(st.sampled_from([None, Hole(0, 9), Hole(5, 9), Hole(0, 0)]), max_size=12))
def test_sightings_count_the_current_run(holes: list[Hole | None]) -> None:
    """The count is how often the last hole was seen without a break, and 0 without one."""
    seen = Sightings()
    for hole in holes:
        seen = next_sightings(seen, hole)
    run = 0
    for hole in reversed(holes):
        if hole is None or hole != holes[-1]:
            break
        run += 1
    assert seen.times == run
