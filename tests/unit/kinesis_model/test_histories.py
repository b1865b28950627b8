"""Random histories of puts, splits, merges, scalings and trims: the guarantees of the model hold after each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.core.model import HASH_KEY_MAX
from leasehold.kinesis_model.api_errors import KinesisApiError
from leasehold.kinesis_model.reading import IteratorType
from leasehold.kinesis_model.shard import ShardState
from tests.unit.kinesis_model.model_under_test import HOUR_MS, ModelUnderTest, shard_id_of


@dataclass
class Written:
    """The test's own note of a record: arrival time and shard."""

    number: int
    data: bytes
    arrival_ms: int
    shard: int


@dataclass
class Seen:
    """The test's own note of a shard: when it opened and closed."""

    opened_ms: int
    closed_ms: int | None = None


@dataclass
class History:
    """A model, and the test's own notes, which do not use the internals of the model."""

    model: ModelUnderTest
    written: list[Written] = field(default_factory=list)
    seen: dict[int, Seen] = field(default_factory=dict)
    forgotten_before_ms: int = 0

    def note_shards(self) -> None:
        """Note new and closed shards from the model's listing, at the time of the change."""
        for shard in self.model.stream.shards.values():
            known = self.seen.setdefault(shard.index, Seen(shard.opened_ms))
            known.closed_ms = shard.closed_ms

    def put(self, hash_key: int) -> None:
        data = b"%d" % len(self.written)
        stored = self.model.put(data, hash_key=hash_key)
        shard = int(stored.shard_id.removeprefix("shardId-"))
        arrival_ms = self.model.stream.clock.now_ms
        self.written.append(Written(stored.number, data, arrival_ms, shard))

    def attempt(self, change: Callable[[], object]) -> None:
        """Try a change. A refused change must change nothing, which the checks verify."""
        try:
            change()
        except KinesisApiError:
            return
        self.note_shards()

    def horizon_ms(self) -> int:
        return max(self.forgotten_before_ms, self.model.now_ms - 24 * HOUR_MS)


def open_shards(history: History) -> list[ShardState]:
    return list(history.model.stream.open_shards)


def step_put(history: History, number: int) -> None:
    history.put(number % (HASH_KEY_MAX + 1))


def step_wait(history: History, number: int) -> None:
    history.model.now_ms += (0, 1, 1000, HOUR_MS, 5 * HOUR_MS)[number % 5]


def step_split(history: History, number: int) -> None:
    shards = open_shards(history)
    shard = shards[number % len(shards)]
    at = shard.hash_range.start + 1 + number % (shard.hash_range.end - shard.hash_range.start)
    history.attempt(lambda: history.model.split(shard.index, at))


def step_merge(history: History, number: int) -> None:
    shards = open_shards(history)
    lower, upper = shards[number % len(shards)], shards[(number + 1) % len(shards)]
    history.attempt(lambda: history.model.merge(lower.index, upper.index))


def step_scale(history: History, number: int) -> None:
    target = 1 + number % 8
    history.attempt(lambda: history.model.service.update_shard_count(history.model.now_ms, "s", target))


def step_trim(history: History, number: int) -> None:
    if number % 4 == 0:
        history.model.stream.trim_all_records()
        history.forgotten_before_ms = history.model.stream.clock.now_ms


STEPS = (step_put, step_put, step_put, step_wait, step_split, step_merge, step_scale, step_trim)
CHOICES = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2**128)), max_size=40)


def run(choices: list[tuple[Callable[[History, int], None], int]], shards: int) -> History:
    history = History(ModelUnderTest(shards=shards))
    history.note_shards()
    for step, number in choices:
        step(history, number)
    return history


def read_shard(model: ModelUnderTest, index: int) -> tuple[list[tuple[int, bytes]], list[int]]:
    """Read a whole shard in pages of two, and return its records and children."""
    found: list[tuple[int, bytes]] = []
    iterator: str | None = model.iterator(index)
    children: list[int] = []
    while iterator:
        page, iterator = model.get(iterator, limit=2)
        found += [(record.number, record.data) for record in page.records]
        children = [int(child.id.removeprefix("shardId-")) for child in page.children]
        if not page.records:
            break
    return found, children


def read_in_order(model: ModelUnderTest, roots: list[int]) -> list[tuple[int, bytes]]:
    """Read as a consumer does: a shard after all its parents."""
    found: list[tuple[int, bytes]] = []
    waiting, done = list(roots), set[int]()
    while waiting:
        index = waiting.pop(0)
        parents = [
            int(parent.removeprefix("shardId-")) for parent in model.stream.shard(shard_id_of(index)).parents
        ]
        listed = set(model.list_shards())
        if index in done:
            continue
        if any(parent in listed and parent not in done for parent in parents):
            waiting.append(index)
            continue
        records, children = read_shard(model, index)
        found += records
        done.add(index)
        waiting += [child for child in children if child not in done]
    return found


@given(CHOICES, st.integers(1, 4))
@settings(max_examples=300)
def test_every_record_is_read_once_from_parents_to_children(
    choices: list[tuple[Callable[[History, int], None], int]], shards: int
) -> None:
    """A reader that starts at the trim horizon reads each retained record once, in order per shard."""
    history = run(choices, shards)
    retained = [record for record in history.written if record.arrival_ms >= history.horizon_ms()]
    found = read_in_order(history.model, history.model.list_shards("AT_TRIM_HORIZON"))
    assert sorted(found) == sorted((record.number, record.data) for record in retained)
    assert len({number for number, _ in found}) == len(found)
    for shard in history.seen:
        in_shard = [record.data for record in retained if record.shard == shard]
        assert [data for _, data in found if data in set(in_shard)] == in_shard


@given(CHOICES, st.integers(1, 4))
@settings(max_examples=300)
def test_open_shards_always_cover_the_hash_range(
    choices: list[tuple[Callable[[History, int], None], int]], shards: int
) -> None:
    """After every step, the open shards cover 0 to 2^128-1 without gap or overlap."""
    history = History(ModelUnderTest(shards=shards))
    for step, number in choices:
        step(history, number)
        ranges = [shard.hash_range for shard in open_shards(history)]
        assert (ranges[0].start, ranges[-1].end) == (0, HASH_KEY_MAX)
        assert all(left.end + 1 == right.start for left, right in pairwise(ranges))


@given(CHOICES, st.integers(1, 4))
@settings(max_examples=300)
def test_numbers_increase_in_a_shard_and_from_parent_to_child(
    choices: list[tuple[Callable[[History, int], None], int]], shards: int
) -> None:
    """Numbers increase within a shard. A child starts above the end of its parents."""
    history = run(choices, shards)
    for shard in history.seen:
        numbers = [record.number for record in history.written if record.shard == shard]
        assert all(left < right for left, right in pairwise(numbers))
    listed = {shard.id: shard.to_shard() for shard in history.model.stream.shards.values()}
    for child in listed.values():
        for parent in child.parents:
            if parent in listed:
                assert int(listed[parent].ending_sequence_number or 0) < int(child.starting_sequence_number)
    for record in history.written:
        if shard_id_of(record.shard) in listed:
            bounds = listed[shard_id_of(record.shard)]
            assert int(bounds.starting_sequence_number) < record.number
            assert record.number < int(bounds.ending_sequence_number or 10**60)


@given(CHOICES, st.integers(1, 4), st.integers(-10, 30 * HOUR_MS))
@settings(max_examples=300)
def test_filters_agree_with_the_noted_opening_times(
    choices: list[tuple[Callable[[History, int], None], int]], shards: int, since_begin_ms: int
) -> None:
    """All six filters list the shards that follow from the noted opening and closing times."""
    history = run(choices, shards)
    model = history.model
    horizon_ms = max(history.horizon_ms(), min(seen.opened_ms for seen in history.seen.values()))
    asked_ms = min(seen.opened_ms for seen in history.seen.values()) + since_begin_ms
    at_ms = max(asked_ms, horizon_ms)

    def open_at(seen: Seen, moment_ms: int) -> bool:
        return seen.opened_ms <= moment_ms and (seen.closed_ms is None or moment_ms <= seen.closed_ms - 1)

    def open_since(seen: Seen, moment_ms: int) -> bool:
        return seen.closed_ms is None or seen.closed_ms - 1 >= moment_ms

    def passing(keeps: Callable[[Seen], bool]) -> list[int]:
        return sorted(index for index, seen in history.seen.items() if keeps(seen))

    retained = passing(lambda seen: open_since(seen, horizon_ms))
    assert model.list_shards() == model.list_shards("FROM_TRIM_HORIZON") == retained
    assert model.list_shards("AT_LATEST") == passing(lambda seen: seen.closed_ms is None)
    assert model.list_shards("AT_TRIM_HORIZON") == passing(lambda seen: open_at(seen, horizon_ms))
    assert model.list_shards("AT_TIMESTAMP", timestamp_ms=asked_ms) == passing(
        lambda seen: open_at(seen, at_ms)
    )
    assert model.list_shards("FROM_TIMESTAMP", timestamp_ms=asked_ms) == passing(
        lambda seen: open_since(seen, at_ms)
    )
    middle = retained[len(retained) // 2]
    assert model.list_shards("AFTER_SHARD_ID", shard_id=shard_id_of(middle)) == [
        n for n in retained if n > middle
    ]


@given(CHOICES, st.integers(1, 4), st.integers(0, 30 * HOUR_MS))
@settings(max_examples=200)
def test_the_shards_open_at_any_moment_cover_the_hash_range(
    choices: list[tuple[Callable[[History, int], None], int]], shards: int, since_begin_ms: int
) -> None:
    """AT_TRIM_HORIZON and AT_TIMESTAMP, from which leases are created, list shards that cover the hash range."""
    model = run(choices, shards).model
    timestamp_ms = min(model.now_ms, model.stream.created_ms + since_begin_ms)
    for listed in (
        model.list_shards("AT_TRIM_HORIZON"),
        model.list_shards("AT_TIMESTAMP", timestamp_ms=timestamp_ms),
    ):
        ranges = sorted(model.stream.shard(shard_id_of(index)).hash_range for index in listed)
        assert (ranges[0].start, ranges[-1].end) == (0, HASH_KEY_MAX)
        assert all(left.end + 1 == right.start for left, right in pairwise(ranges))


@given(CHOICES, st.integers(0, 30 * HOUR_MS))
@settings(max_examples=200)
def test_at_timestamp_reads_the_records_that_arrived_since(
    choices: list[tuple[Callable[[History, int], None], int]], since_begin_ms: int
) -> None:
    """AT_TIMESTAMP in any shard reads exactly the retained records that arrived then or later."""
    history = run(choices, shards=2)
    model = history.model
    time_ms = min(model.now_ms, model.stream.created_ms + since_begin_ms)
    for index in model.list_shards():
        page, _ = model.get(model.iterator(index, IteratorType.AT_TIMESTAMP, time_ms=time_ms))
        expected = [
            record.data
            for record in history.written
            if record.shard == index and record.arrival_ms >= max(time_ms, history.horizon_ms())
        ]
        assert list(page.records.data) == expected
