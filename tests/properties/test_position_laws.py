"""Order and equality of places, for any two or three of them."""

from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.position import SHARD_END, SUB_SEQUENCE_MAX, Position
from tests.properties.reshard_histories import cases

WORDS = {"AT_TIMESTAMP": -3, "TRIM_HORIZON": -2, "LATEST": -1}

numbers = st.one_of(st.integers(0, 12), st.integers(0, 10**56)).map(str)
padded = st.builds(lambda zeros, number: "0" * zeros + number, st.integers(0, 3), numbers)
texts = st.one_of(st.sampled_from([*WORDS, "SHARD_END"]), padded)
subs = st.one_of(st.integers(0, 2), st.integers(0, SUB_SEQUENCE_MAX))
places = st.builds(Position, texts, subs)


@cases(1000)
@given(places, places)
def test_order_is_total_and_consistent(a: Position, b: Position) -> None:
    """Of any two places one is before the other or they are level, and the four comparisons agree on it."""
    assert (a < b) + (b < a) + (a <= b <= a) == 1
    assert (a <= b) == (not b < a)
    assert (a > b) == (b < a)
    assert (a >= b) == (b <= a)


@cases(1000)
@given(places, places, places)
def test_order_is_transitive(a: Position, b: Position, c: Position) -> None:
    """Sorting puts every pair in order, not only neighbours."""
    low, middle, high = sorted([a, b, c])
    assert low <= middle <= high
    assert low <= high


@cases(1000)
@given(places, places)
def test_order_is_the_java_order(a: Position, b: Position) -> None:
    """SHARD_END above all; words as small negative numbers; then the sub-sequence."""

    def java_order(place: Position) -> tuple[float, int]:
        if place.sequence_number == "SHARD_END":
            return (float("inf"), 0)
        word = WORDS.get(place.sequence_number)
        return (int(place.sequence_number) if word is None else word, place.sub_sequence_number)

    assert (a < b) == (java_order(a) < java_order(b))


@cases(1000)
@given(places, places)
def test_equality_is_of_text_and_agrees_with_hash(a: Position, b: Position) -> None:
    """Equal means the same text and sub-sequence number; equal places are level and hash alike."""
    same = (a.sequence_number, a.sub_sequence_number) == (b.sequence_number, b.sub_sequence_number)
    assert (a == b) == same
    assert not same or (hash(a) == hash(b) and a <= b <= a)


@cases(500)
@given(places)
def test_nothing_is_after_the_end(a: Position) -> None:
    """SHARD_END is at or after every place, and only other ends are level with it."""
    assert a <= SHARD_END
    assert (a >= SHARD_END) == a.is_shard_end
