"""Which objects of an archive become one, and that the names of the large ones tell the truth."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.core.exactly_once.archive_reading import UNSETTLED_OBJECTS, parts_to_read
from leasehold.core.exactly_once.compaction_plan import (
    MINUTES_PER_DAY,
    ArchivedObject,
    CompactionLimits,
    Group,
    covered_objects,
    plan_compaction,
)
from leasehold.core.exactly_once.object_keys import ObjectKey, key_from_text, key_to_text
from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.model import ShardId
from leasehold.core.position import Position

LIMITS = CompactionLimits(target_bytes=100, closed_minute=10**6)


def key(
    minute: int, first: int, last: int, *, since: int | None = None, extension: str = "parquet"
) -> ObjectKey:
    return ObjectKey(minute, ShardId("a"), Range(Position(str(first)), Position(str(last))), extension, since)


def small(
    minute: int, first: int, last: int, size: int = 10, *, extension: str = "parquet"
) -> ArchivedObject:
    each = key(minute, first, last, extension=extension)
    return ArchivedObject(key_to_text(each), each, size)


def newer_objects(minute: int = 5_000) -> list[ArchivedObject]:
    """So many later objects that everything before them is settled."""
    return [small(minute, 10**6 + n, 10**6 + n, 10**9) for n in range(UNSETTLED_OBJECTS)]


def spans(groups: list[Group]) -> list[tuple[int, int, int]]:
    return [(len(each.objects), each.key.range.first.number, each.key.range.last.number) for each in groups]


def plan(objects: list[ArchivedObject], limits: CompactionLimits = LIMITS) -> list[tuple[int, int, int]]:
    return spans(list(plan_compaction([*objects, *newer_objects()], limits)))


def test_consecutive_objects_are_merged_up_to_the_target_size() -> None:
    """The group that a later run can extend is merged as well, if that is worthwhile."""
    objects = [small(n, 10 * n, 10 * n + 9) for n in range(25)]
    assert plan(objects) == [(10, 0, 99), (10, 100, 199), (5, 200, 249)]
    (group, *_) = plan_compaction([*objects, *newer_objects()], LIMITS)
    assert (group.key.first_minute, group.key.minute, group.key.is_compacted) == (0, 9, True)
    assert key_from_text(key_to_text(group.key, "x"), "x") == group.key


def test_only_closed_minutes_of_one_day_and_format_are_merged() -> None:
    """A group never crosses midnight, and an object of an open minute ends it."""
    day = MINUTES_PER_DAY
    objects = [small(minute, 10 * n, 10 * n + 9) for n, minute in enumerate([day - 2, day - 1, day, day + 1])]
    assert plan(objects) == [(2, 0, 19), (2, 20, 39)]
    assert plan(objects, CompactionLimits(100, closed_minute=day + 1)) == [(2, 0, 19)]
    mixed = [small(1, n, n, extension="jsonl" if n > 1 else "parquet") for n in range(4)]
    assert plan(mixed) == [(2, 0, 1), (2, 2, 3)]


def test_objects_that_interleave_stay_together() -> None:
    """Records of two minutes interleave. A cut between them would claim records of an object outside the group."""
    objects = [small(1, 0, 9, 60), small(1, 10, 30, 40), small(2, 20, 25, 40), small(1, 31, 40, 60)]
    for group in plan_compaction([*objects, *newer_objects()], LIMITS):
        outside = [each for each in objects if each not in group.objects]
        assert not any(group.key.covers(each.key) for each in outside)
    at_midnight = [small(MINUTES_PER_DAY - 1, 0, 10), small(MINUTES_PER_DAY, 5, 12)]
    assert plan(at_midnight) == []


def test_the_newest_objects_stay() -> None:
    """A writer that was killed may still create an object before them."""
    objects = [small(n, n, n, 1) for n in range(UNSETTLED_OBJECTS + 3)]
    assert spans(list(plan_compaction(objects, LIMITS))) == [(3, 0, 2)]
    assert plan_compaction(objects[3:], LIMITS) == []


def test_objects_that_were_stored_recently_and_all_later_ones_stay() -> None:
    """A writer adds older records. Its next object may belong between any of these, or shortly before."""
    limits = CompactionLimits(1000, closed_minute=10**6, stored_before_ms=500)
    old = [replace(small(n, n, n, 1), modified_ms=100) for n in range(60)]
    assert plan(old, limits) == [(60, 0, 59)]
    settled = 40 - UNSETTLED_OBJECTS + 1
    recent = [replace(each, modified_ms=500 if each.key.minute == 40 else 100) for each in old]
    assert plan(recent, limits) == [(settled, 0, settled - 1)]
    assert plan(recent, CompactionLimits(1000, closed_minute=10**6)) == [(60, 0, 59)]
    # Compaction itself made this one.
    large = ArchivedObject("large", key(70, 60, 69, since=60), 10, modified_ms=900)
    assert plan([*old, large], limits) == [(61, 0, 69)]


def test_a_large_object_is_not_rewritten_for_a_few_small_ones() -> None:
    """No object is larger than all others of its group together."""
    objects = [small(1, 0, 0, 60), *(small(2, n, n, 5) for n in range(1, 5))]
    assert plan(objects) == [(4, 1, 4)]
    assert plan([*objects, small(2, 6, 6, 15), small(2, 7, 7, 5)]) == [(6, 1, 7)]
    assert plan([small(1, 0, 0, 60), small(2, 1, 1, 5)]) == []


def test_an_object_within_a_compacted_one_is_covered() -> None:
    """Its minutes and its range must both lie within. An object that was not compacted covers nothing."""
    large = ArchivedObject("large", key(20, 100, 200, since=10), 1)
    inside = [small(10, 100, 110), small(20, 150, 200), small(15, 120, 120)]
    outside = [small(9, 120, 130), small(21, 120, 130), small(15, 99, 120), small(15, 190, 201)]
    covered = covered_objects([*outside, *inside, large])
    assert covered.keys() == {each.name for each in inside}
    assert {each.by.name for each in covered.values()} == {"large"}
    larger = ArchivedObject("larger", key(25, 100, 300, since=10), 1)
    assert covered_objects([large, larger])["large"].by is larger
    assert covered_objects([small(15, 1, 9), small(15, 3, 4)]) == {}
    assert [part.key for part in parts_to_read(each.key for each in [*inside, large])] == [large.key]


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 2), st.integers(1, 60)), max_size=40
    ),
    st.integers(0, 40),
)
def test_a_plan_never_hides_a_record(steps: list[tuple[int, int, int, int]], late: int) -> None:
    """After each merge, readers read exactly the records that they read before, in any order of minutes."""
    objects: list[ArchivedObject] = []
    first = minute = 0
    for gap, length, later, size in steps:
        first, minute = first + gap, max(0, minute + later - (late % 2))
        objects.append(small(minute, first, first + length, size))
        first += 1 if late % 3 else length + 1  # objects of different minutes may interleave
    unique = list({each.name: each for each in objects}.values())
    # One position in one minute is one record, which one object has.
    owner = {
        (each.key.minute, n): each.name
        for each in unique
        for n in range(each.key.range.first.number, each.key.range.last.number + 1)
    }
    distinct = [
        each for each in unique if all(owner[each.key.minute, n] == each.name for n in _numbers(each))
    ]
    uncovered = [*distinct, *newer_objects()]
    groups = plan_compaction(uncovered, LIMITS)
    merged = [each for group in groups for each in group.objects]
    assert len({each.name for each in merged}) == len(merged)
    large = [ArchivedObject(key_to_text(group.key), group.key, group.size_bytes) for group in groups]
    covered = covered_objects([*uncovered, *large])
    assert covered.keys() == {each.name for each in merged}
    for group in groups:
        assert len(group.objects) > 1
        assert group.key.first_minute // MINUTES_PER_DAY == group.key.minute // MINUTES_PER_DAY


def _numbers(each: ArchivedObject) -> range:
    return range(each.key.range.first.number, each.key.range.last.number + 1)
