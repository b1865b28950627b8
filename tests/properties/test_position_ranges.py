"""Compares sets of ranges with an oracle that lists every position.

The oracle cannot list all 2^63 sub-sequence numbers. But the ranges begin and end only at a few of them (`ENDS`), so a
result begins and ends only there or next to there. These places, together with one place far from every end
(`MIDDLE`), determine a set.
"""

from itertools import product
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.core.exactly_once.position_ranges import Range, RangeSet
from leasehold.core.position import SUB_SEQUENCE_MAX, Position
from leasehold.errors import InvalidRangeError

MIDDLE = 1000
ENDS = [0, 1, 2, SUB_SEQUENCE_MAX - 1, SUB_SEQUENCE_MAX]
SUBS = [0, 1, 2, 3, MIDDLE, SUB_SEQUENCE_MAX - 2, SUB_SEQUENCE_MAX - 1, SUB_SEQUENCE_MAX]
PLACES = list(product(range(5), SUBS))

Place = tuple[int, int]
ENDINGS = st.tuples(st.integers(0, 4), st.sampled_from(ENDS))
SPANS = st.lists(st.tuples(ENDINGS, ENDINGS).map(sorted), max_size=6)


def ranges_of(spans: list[list[Place]]) -> RangeSet:
    return RangeSet.of(range_of(first, last) for first, last in spans)


def range_of(first: Place, last: Place) -> Range:
    return Range(position(first), position(last))


def position(place: Place) -> Position:
    return Position(str(place[0]), place[1])


def oracle(spans: list[list[Place]]) -> set[Place]:
    return {place for place in PLACES for first, last in spans if first <= place <= last}


def covered(ranges: RangeSet) -> set[Place]:
    return {place for place in PLACES if position(place) in ranges}


def minimal(places: set[Place]) -> list[Range]:
    """The fewest ranges that cover the places. Adjacent places form one range."""
    found: list[list[Place]] = []
    for place in PLACES:
        if place not in places:
            continue
        if found and PLACES[PLACES.index(place) - 1] == found[-1][1]:
            found[-1][1] = place
        else:
            found.append([place, place])
    return [range_of(first, last) for first, last in found]


def check(ranges: RangeSet, places: set[Place]) -> None:
    """Assert that the set covers exactly these places, in its canonical form."""
    assert covered(ranges) == places
    assert list(ranges) == minimal(places)
    assert ranges == RangeSet.of(minimal(places))
    assert (len(ranges), bool(ranges)) == (len(minimal(places)), bool(places))
    assert ranges.last == (position(max(places)) if places else None)
    assert RangeSet.from_text(ranges.to_text()) == ranges


@settings(max_examples=1000, deadline=None)
@given(SPANS, SPANS)
def test_set_algebra(ours: list[list[Place]], theirs: list[list[Place]]) -> None:
    """Union, intersection and difference equal those of Python sets."""
    a, b = ranges_of(ours), ranges_of(theirs)
    check(a, oracle(ours))
    check(a | b, oracle(ours) | oracle(theirs))
    check(a & b, oracle(ours) & oracle(theirs))
    check(a - b, oracle(ours) - oracle(theirs))


@settings(max_examples=1000, deadline=None)
@given(SPANS)
def test_adding_ranges_one_by_one_equals_adding_them_at_once(spans: list[list[Place]]) -> None:
    """The order and repetitions do not matter."""
    for order in (spans, sorted(spans), sorted(spans, reverse=True), [*spans, *spans]):
        ranges = RangeSet()
        for first, last in order:
            ranges = ranges.add(range_of(first, last))
        assert ranges == ranges_of(spans)


@settings(max_examples=1000, deadline=None)
@given(SPANS, ENDINGS, ENDINGS)
def test_a_range_is_covered_when_all_its_places_are(
    spans: list[list[Place]], one: Place, other: Place
) -> None:
    """A range with a gap is not covered."""
    first, last = min(one, other), max(one, other)
    inside = {place for place in PLACES if first <= place <= last}
    assert ranges_of(spans).covers(range_of(first, last)) == (inside <= oracle(spans))


def test_thousands_of_random_sets_of_plain_numbers() -> None:
    """Compares 5,000 pairs of long sets over 60 numbers with Python's sets. Hypothesis rarely draws long sets."""
    random = Random(20240607)
    for _ in range(5000):
        a, b = random_numbers(random), random_numbers(random)
        ours, theirs = of_numbers(a), of_numbers(b)
        for result, numbers in ((ours | theirs, a | b), (ours & theirs, a & b), (ours - theirs, a - b)):
            assert result == of_numbers(numbers)


def random_numbers(random: Random) -> set[int]:
    found: set[int] = set()
    for _ in range(random.randrange(8)):
        start = random.randrange(60)
        found |= set(range(start, min(60, start + random.randrange(12))))
    return found


def of_numbers(numbers: set[int]) -> RangeSet:
    """The set of these Kinesis records, each with all its user records."""
    whole = [Range(Position(str(each)), Position(str(each), SUB_SEQUENCE_MAX)) for each in numbers]
    return RangeSet.of(whole)


NUMBERS = st.integers(0, 10**56) | st.integers(0, 20)
POSITIONS = st.builds(
    lambda number, sub: (number, sub), NUMBERS, st.integers(0, 3) | st.integers(0, SUB_SEQUENCE_MAX)
)


@settings(max_examples=1000, deadline=None)
@given(st.lists(st.tuples(POSITIONS, POSITIONS).map(sorted), max_size=8))
def test_text_round_trip(spans: list[list[Place]]) -> None:
    """A set is parsed as it was written, also with the large numbers of Kinesis."""
    ranges = ranges_of(spans)
    assert RangeSet.from_text(ranges.to_text()) == ranges


@settings(max_examples=2000, deadline=None)
@given(st.text(max_size=20) | st.text("0123456789-/,", max_size=20))
def test_a_text_is_refused_or_written_back_unchanged(text: str) -> None:
    """A set has one text, and every other text raises InvalidRangeError."""
    try:
        ranges = RangeSet.from_text(text)
    except InvalidRangeError:
        return
    assert ranges.to_text() == text
