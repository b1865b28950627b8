"""Order and equality of positions, for any two or three of them."""

from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.position import SHARD_END, SUB_SEQUENCE_MAX, Position
from tests.properties.reshard_histories import cases

SENTINELS = {"AT_TIMESTAMP": -3, "TRIM_HORIZON": -2, "LATEST": -1}

numbers = st.one_of(st.integers(0, 12), st.integers(0, 10**56)).map(str)
padded = st.builds(lambda zeros, number: "0" * zeros + number, st.integers(0, 3), numbers)
texts = st.one_of(st.sampled_from([*SENTINELS, "SHARD_END"]), padded)
subs = st.one_of(st.integers(0, 2), st.integers(0, SUB_SEQUENCE_MAX))
positions = st.builds(Position, texts, subs)


@cases(1000)
@given(positions, positions)
def test_order_is_total_and_consistent(a: Position, b: Position) -> None:
    """Of any two positions, one is before the other or they have the same order; the four comparisons agree."""
    assert (a < b) + (b < a) + (a <= b <= a) == 1
    assert (a <= b) == (not b < a)
    assert (a > b) == (b < a)
    assert (a >= b) == (b <= a)


@cases(1000)
@given(positions, positions, positions)
def test_order_is_transitive(a: Position, b: Position, c: Position) -> None:
    """Sorting puts every pair in order, not only neighbours."""
    low, middle, high = sorted([a, b, c])
    assert low <= middle <= high
    assert low <= high


@cases(1000)
@given(positions, positions)
def test_order_is_the_java_order(a: Position, b: Position) -> None:
    """SHARD_END above all; the other sentinels as small negative numbers; then the sub-sequence number."""

    def java_order(position: Position) -> tuple[float, int]:
        if position.sequence_number == "SHARD_END":
            return (float("inf"), 0)
        value = SENTINELS.get(position.sequence_number)
        return (int(position.sequence_number) if value is None else value, position.sub_sequence_number)

    assert (a < b) == (java_order(a) < java_order(b))


@cases(1000)
@given(positions, positions)
def test_equality_is_textual_and_agrees_with_hash(a: Position, b: Position) -> None:
    """Equal positions have the same text, sub-sequence number, order and hash."""
    same = (a.sequence_number, a.sub_sequence_number) == (b.sequence_number, b.sub_sequence_number)
    assert (a == b) == same
    assert not same or (hash(a) == hash(b) and a <= b <= a)


@cases(500)
@given(positions)
def test_no_position_is_after_the_end(a: Position) -> None:
    """SHARD_END is at or after every position, and only other ends have the same order."""
    assert a <= SHARD_END
    assert (a >= SHARD_END) == a.is_shard_end
