"""After a failure: waits grow, halves are tried in order, and exactly the poison records are found."""

from dataclasses import replace
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import ConfigError
from leasehold.worker.delivery.poison_search import Bisect, Poison, Retry, RetryRange, decide_after_failure
from leasehold.worker.settings import ErrorSettings, OnPoison

SKIP = ErrorSettings(retries=2, on_poison=OnPoison.SKIP)


def search(count: int, poison: set[int], settings: ErrorSettings) -> tuple[list[range], list[int], list[int]]:
    """Return all calls, the handled records and the poison records, each in order."""
    calls: list[range] = []
    handled: list[int] = []
    found: list[int] = []
    ranges = [RetryRange(0, count)]
    while ranges:
        tried = ranges.pop()
        records = range(tried.first, tried.stop)
        calls.append(records)
        if not poison & set(records):
            handled += records
            continue
        match decide_after_failure(tried, settings, 0.5):
            case Retry(again, _):
                ranges.append(again)
            case Bisect(first, second):
                ranges += [second, first]
            case Poison():
                found += records
    return calls, handled, found


@given(st.integers(1, 300), st.sets(st.integers(0, 299), max_size=20), st.integers(0, 3))
def test_the_search_finds_exactly_the_poison_records(count: int, poison: set[int], retries: int) -> None:
    """All other records are handled once, and both are in shard order."""
    poison &= set(range(count))
    _, handled, found = search(count, poison, ErrorSettings(retries=retries, on_poison=OnPoison.SKIP))
    assert found == sorted(poison)
    assert handled == [record for record in range(count) if record not in poison]


@given(st.integers(0, 1023), st.integers(0, 4))
def test_one_poison_record_among_1024_costs_two_calls_per_bisection(record: int, retries: int) -> None:
    """The whole batch and the record itself are tried 1 + retries times, every other part once."""
    calls, _, _ = search(1024, {record}, ErrorSettings(retries=retries, on_poison=OnPoison.SKIP))
    assert len(calls) == (1 + retries) + 2 * 10 + retries


@given(st.integers(2, 200), st.sets(st.integers(0, 199), min_size=1, max_size=5))
def test_a_handled_record_is_not_delivered_again(count: int, poison: set[int]) -> None:
    """No call after the successful one contains it."""
    poison &= set(range(count))
    calls, handled, _ = search(count, poison, SKIP)
    for record in handled:
        last = max(index for index, records in enumerate(calls) if record in records)
        assert not poison & set(calls[last])


def test_waits_double_up_to_the_limit() -> None:
    """The draw spreads each wait over its range, but never to zero."""
    waits = []
    tried = RetryRange(0, 1)
    settings = ErrorSettings(retries=100)
    for _ in range(12):
        again = decide_after_failure(tried, settings, 0.9999)
        assert isinstance(again, Retry)
        waits.append(again.wait_ms)
        tried = again.records
    assert waits[:4] == [199, 399, 799, 1599]
    assert waits[-1] == 29_997
    spread = decide_after_failure(tried, settings, 0.0)
    assert isinstance(spread, Retry)
    assert spread.wait_ms == 50


def test_a_held_record_is_retried_for_ever() -> None:
    """The default never gives up a record."""
    tried = RetryRange(3, 4, attempt=10_000, is_whole_batch=False)
    assert isinstance(decide_after_failure(tried, ErrorSettings(), 0.5), Retry)


def test_without_bisecting_a_batch_is_poison_as_a_whole() -> None:
    """Or it is held as a whole."""
    batch = RetryRange(0, 10, attempt=3)
    assert (
        decide_after_failure(batch, ErrorSettings(retries=2, bisect=False, on_poison=OnPoison.SKIP), 0.5)
        == Poison()
    )
    assert isinstance(decide_after_failure(batch, ErrorSettings(retries=2, bisect=False), 0.5), Retry)


def test_on_poison_and_dead_letters_must_agree() -> None:
    """Setting dead_letters is enough. Contradictions are refused."""
    assert ErrorSettings().poison is OnPoison.HOLD
    assert ErrorSettings(dead_letters="letters.jsonl").poison is OnPoison.DEAD_LETTER
    with pytest.raises(ConfigError, match="set dead_letters"):
        ErrorSettings(on_poison=OnPoison.DEAD_LETTER)
    with pytest.raises(ConfigError, match=r"letters\.jsonl"):
        ErrorSettings(on_poison=OnPoison.STOP_SHARD, dead_letters="letters.jsonl")


@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("is_whole_batch", [True, False])
@pytest.mark.parametrize("bisect", [True, False])
def test_prepared_records_are_neither_split_nor_disposed_of(
    count: int, is_whole_batch: bool, bisect: bool
) -> None:
    """Their effect may exist. A half, or a dead letter, would be another effect, with the same records."""
    tried = RetryRange(0, count, attempt=9, is_whole_batch=is_whole_batch, is_prepared=True)
    again = Retry(replace(tried, attempt=10), ANY)
    for kept in (
        ErrorSettings(retries=1, bisect=bisect),
        ErrorSettings(retries=1, bisect=bisect, on_poison=OnPoison.SKIP),
        ErrorSettings(retries=1, bisect=bisect, dead_letters="letters.jsonl"),
    ):
        assert decide_after_failure(tried, kept, 0.5) == again
    for stops in (OnPoison.STOP_SHARD, OnPoison.STOP_WORKER):
        settings = ErrorSettings(retries=8, bisect=bisect, on_poison=stops)
        assert decide_after_failure(tried, settings, 0.5) == Poison()
        assert isinstance(decide_after_failure(replace(tried, attempt=8), settings, 0.5), Retry)
