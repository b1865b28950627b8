"""The contract of the `Stream` port: one suite for the stream in memory and for the AWS adapter on real servers."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any, Protocol

import pytest
from botocore.exceptions import ClientError

from leasehold.core.model import (
    HASH_KEY_MAX,
    WHOLE_HASH_RANGE,
    ChildShard,
    HashRange,
    ShardId,
    is_stream_identifier,
)
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter, ShardFilterKind
from leasehold.errors import (
    IteratorExpiredError,
    NotFoundError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.kinesis_model.api_errors import KinesisApiError
from leasehold.local import LocalKinesis
from tests.contract.stream_ports import FROM_THE_START, MIDDLE, MemoryCase, ServerCase, StreamCase
from tests.contract.streams import eventually

LATEST = IteratorStart(IteratorKind.LATEST)
LOWER, UPPER = HashRange(0, MIDDLE - 1), HashRange(MIDDLE, HASH_KEY_MAX)


class Make(Protocol):
    """Creates a stream with this number of shards."""

    def __call__(self, shards: int = 1, **options: Any) -> StreamCase: ...


@pytest.fixture(params=["memory", "local_kinesis", "kinesis_local"])
def make(request: pytest.FixtureRequest, unique_name: Callable[[str], str]) -> Iterator[Make]:
    """Streams on each server in turn."""
    made: list[StreamCase] = []

    def make_one(shards: int = 1, **options: Any) -> StreamCase:
        made.append(_case(request, request.param, unique_name("port"), shards, **options))
        return made[-1]

    yield make_one
    for each in made:
        with suppress(ClientError, KinesisApiError):  # some tests delete their stream
            each.delete()
        each.close()


def _case(request: pytest.FixtureRequest, server: str, name: str, shards: int, **options: Any) -> StreamCase:
    if server == "memory":
        return MemoryCase(name, shards)
    fixture = request.getfixturevalue(server)
    url = fixture.endpoint_url if isinstance(fixture, LocalKinesis) else fixture.url
    return ServerCase(server, url, name, shards, **options)


@pytest.fixture(params=["memory", "local_kinesis"])
def aged(request: pytest.FixtureRequest) -> Iterator[StreamCase]:
    """A stream of one shard whose time and settings can be changed, so it has its own server."""
    if request.param == "memory":
        with closing(MemoryCase("orders", 1)) as case:
            yield case
        return
    with (
        LocalKinesis.in_thread() as server,
        closing(ServerCase("local_kinesis", server.endpoint_url, "orders", 1, local=server)) as case,
    ):
        yield case


# -- shards --------------------------------------------------------------------------------------------------------


def test_shards_are_listed_with_their_hash_keys(make: Make) -> None:
    """Two new shards share the hash keys, are open, and have no parents."""
    case = make(shards=2)
    shards = sorted(case.run(case.port.list_shards()), key=lambda shard: shard.id)
    assert [shard.id for shard in shards] == ["shardId-000000000000", "shardId-000000000001"]
    lower, upper = (shard.hash_range for shard in shards)
    assert (lower.start, lower.end + 1, upper.end) == (0, upper.start, HASH_KEY_MAX)
    assert all(shard.is_open and shard.parents == () for shard in shards)
    assert all(shard.starting_sequence_number.isdigit() for shard in shards)


def test_parents_and_children_are_listed(make: Make) -> None:
    """Children have one parent after a split and two after a merge; parents are closed and stay in the list."""
    case = make()
    (root,) = case.shard_ids()
    case.split(root)
    _, left, right = case.shard_ids()
    case.merge(left, right)
    shards = {shard.id: shard for shard in case.run(case.port.list_shards())}
    (merged,) = shards.keys() - {root, left, right}
    assert shards[left].parents == shards[right].parents == (root,)
    assert set(shards[merged].parents) == {left, right}
    assert [shards[each].is_open for each in (root, left, right, merged)] == [False, False, False, True]
    assert shards[merged].hash_range == WHOLE_HASH_RANGE


def test_every_page_of_the_list_is_read(make: Make, request: pytest.FixtureRequest) -> None:
    """A list with more shards than one response holds: 1,000, or 100 on kinesis-local."""
    count = 101 if "kinesis_local" in request.node.name.replace("local_kinesis", "") else 1_001
    case = make(shards=count)
    assert len(set(case.shard_ids())) == count


def test_filters_select_shards_by_time(make: Make) -> None:
    """Open now, open at the oldest record, open at a time: the filters that a fleet without leases uses."""
    case = make()
    (root,) = case.shard_ids()
    before_ms = case.now_ms()
    eventually(lambda: case.now_ms() // 1000 > before_ms // 1000, "the next second begins")
    case.split(root)
    _, *children = case.shard_ids()

    def listed(kind: ShardFilterKind, timestamp_ms: int | None = None) -> list[ShardId]:
        shards = case.run(case.port.list_shards(ShardFilter(kind, timestamp_ms)))
        return sorted(shard.id for shard in shards)

    assert listed(ShardFilterKind.AT_LATEST) == children
    assert listed(ShardFilterKind.AT_TIMESTAMP, before_ms) == [root]
    at_horizon = [root, *children] if case.server == "kinesis_local" else [root]  # it treats AT_ as FROM_
    assert listed(ShardFilterKind.AT_TRIM_HORIZON) == at_horizon


def test_a_stream_has_an_identifier(make: Make) -> None:
    """Account, name and creation time in seconds, the same for every client."""
    case = make()
    found = case.run(case.port.get_identifier())
    assert is_stream_identifier(found)
    _, name, created_s = found.split(":")
    assert name == case.name
    assert abs(int(created_s) - case.now_ms() // 1000) < 3_600
    assert case.run(case.port.get_identifier()) == found


def test_an_unknown_stream_is_not_found(make: Make) -> None:
    """Every call raises the same error, also for a deleted stream."""
    case = make()
    (shard,) = case.shard_ids()
    case.delete()

    def is_gone() -> bool:
        try:
            case.run(case.port.list_shards())
        except NotFoundError:
            return True
        except ServiceError:
            return False  # it is still being deleted
        return False

    eventually(is_gone, "the stream is deleted")
    with pytest.raises(NotFoundError):
        case.run(case.port.get_iterator(shard, FROM_THE_START))


def test_a_stream_can_be_named_by_its_arn(make: Make) -> None:
    """Listing, iterators and records work the same, as a stream of another account requires."""
    case = make(by_arn=True)
    case.put(b"x")
    (shard,) = case.shard_ids()
    records, _ = case.read(shard)
    assert [record.data for record in records] == [b"x"]


# -- records -------------------------------------------------------------------------------------------------------


def test_records_are_returned_unchanged(make: Make) -> None:
    """Bytes, keys and sequence numbers are the same; the arrival is a time in milliseconds."""
    case = make()
    before_ms = case.now_ms()
    numbers = [
        case.put(b"", key="k1"),
        case.put(bytes(range(256)), key="k2"),
        case.put("ä".encode(), key="schlüssel"),
    ]
    (shard,) = case.shard_ids()
    records, page = case.read(shard)
    assert [(record.data, record.partition_key) for record in records] == [
        (b"", "k1"),
        (bytes(range(256)), "k2"),
        ("ä".encode(), "schlüssel"),
    ]
    assert [record.sequence_number for record in records] == numbers
    for record in records:
        assert record.arrival_ms is not None
        assert before_ms - 5_000 <= record.arrival_ms <= case.now_ms() + 5_000
    assert (page.millis_behind, page.children) == (0, ())


def test_a_page_holds_the_requested_number_of_records(make: Make) -> None:
    """The next iterator continues after them, and a page behind the tip says how far behind it is."""
    case = make()
    for number in range(5):
        case.put(b"%d" % number)
    (shard,) = case.shard_ids()
    first = case.run(case.port.get_records(case.run(case.port.get_iterator(shard, FROM_THE_START)), limit=3))
    assert [record.data for record in first.records] == [b"0", b"1", b"2"]
    assert first.next_iterator
    second = case.run(case.port.get_records(first.next_iterator, limit=3))
    assert [record.data for record in second.records] == [b"3", b"4"]
    assert second.millis_behind == 0


def test_an_iterator_can_be_used_again(make: Make) -> None:
    """After a lost response the same iterator returns the same page."""
    case = make()
    case.put(b"x")
    (shard,) = case.shard_ids()
    iterator = case.run(case.port.get_iterator(shard, FROM_THE_START))
    first, second = (case.run(case.port.get_records(iterator, limit=10)).records for _ in range(2))
    assert list(first) == list(second)


def test_an_empty_page_is_not_the_end(make: Make) -> None:
    """At the tip there is always a next iterator, and it returns new records."""
    case = make()
    (shard,) = case.shard_ids()
    empty = case.run(case.port.get_records(case.run(case.port.get_iterator(shard, LATEST)), limit=10))
    assert (list(empty.records), empty.millis_behind) == ([], 0)
    assert empty.next_iterator
    case.put(b"new")
    page = case.run(case.port.get_records(empty.next_iterator, limit=10))
    assert [record.data for record in page.records] == [b"new"]


def test_every_start_is_supported(make: Make) -> None:
    """At the oldest record, at the tip, at a record (which is returned again), at a time."""
    case = make()
    case.put(b"0")
    first_ms = case.now_ms()
    # kinesis-local compares whole seconds, so the two records must arrive in different ones.
    eventually(lambda: case.now_ms() // 1000 > first_ms // 1000 + 1, "another second")
    later_ms = case.now_ms()
    number = case.put(b"1")
    case.put(b"2")
    (shard,) = case.shard_ids()

    def data_from(kind: IteratorKind, **detail: Any) -> list[bytes]:
        records, _ = case.read(shard, IteratorStart(kind, **detail))
        return [record.data for record in records]

    assert data_from(IteratorKind.TRIM_HORIZON) == [b"0", b"1", b"2"]
    assert data_from(IteratorKind.LATEST) == []
    assert data_from(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=number) == [b"1", b"2"]
    assert data_from(IteratorKind.AT_TIMESTAMP, timestamp_ms=later_ms - 1000) == [b"1", b"2"]


def test_a_split_shard_ends_with_its_children(make: Make) -> None:
    """After its last record there is no next iterator, and both children are listed with their hash keys."""
    case = make()
    case.put(b"last")
    (root,) = case.shard_ids()
    case.split(root)
    _, left, right = case.shard_ids()
    records, page = case.read_to_end(root)
    assert [record.data for record in records] == [b"last"]
    assert page.next_iterator is None
    assert sorted(page.children, key=lambda child: child.id) == [
        ChildShard(left, (root,), LOWER),
        ChildShard(right, (root,), UPPER),
    ]


def test_merged_shards_end_with_the_same_child(make: Make) -> None:
    """The child lists both parents."""
    case = make(shards=2)
    left, right = case.shard_ids()
    case.merge(left, right)
    (child,) = set(case.shard_ids()) - {left, right}
    for parent in (left, right):
        _, page = case.read_to_end(parent)
        (named,) = page.children
        assert (named.id, set(named.parents), named.hash_range) == (child, {left, right}, WHOLE_HASH_RANGE)


def test_an_unknown_shard_is_not_found(make: Make) -> None:
    """The reader treats it as a shard that is gone."""
    case = make()
    with pytest.raises(NotFoundError):
        case.run(case.port.get_iterator(ShardId("shardId-000000000077"), FROM_THE_START))


def test_an_invalid_iterator_is_a_service_error(make: Make) -> None:
    """It is one of our errors, not boto3's, and not IteratorExpiredError."""
    case = make()
    with pytest.raises(ServiceError) as caught:
        case.run(case.port.get_records("not an iterator", limit=10))
    assert not isinstance(caught.value, IteratorExpiredError | NotFoundError | ThrottledError)


# -- what takes time, or limits ------------------------------------------------------------------------------------


def test_iterators_expire_after_five_minutes(aged: StreamCase) -> None:
    """Both requested iterators and next iterators."""
    aged.put(b"x")
    (shard,) = aged.shard_ids()
    requested = aged.run(aged.port.get_iterator(shard, FROM_THE_START))
    next_one = aged.run(aged.port.get_records(requested, limit=10)).next_iterator
    assert next_one
    aged.advance(timedelta(minutes=4, seconds=50))
    assert aged.run(aged.port.get_records(requested, limit=10)).records
    aged.advance(timedelta(seconds=11))
    for iterator in (requested, next_one):
        with pytest.raises(IteratorExpiredError):
            aged.run(aged.port.get_records(iterator, limit=10))


def test_an_iterator_at_a_trimmed_record_starts_at_the_oldest_one(aged: StreamCase) -> None:
    """The oldest record that is retained."""
    number = aged.put(b"old")
    aged.advance(timedelta(hours=23))
    aged.put(b"young")
    aged.advance(timedelta(hours=2))
    (shard,) = aged.shard_ids()
    records, _ = aged.read(shard, IteratorStart(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=number))
    assert [record.data for record in records] == [b"young"]


def test_a_closed_shard_past_its_retention_is_not_found(aged: StreamCase) -> None:
    """It is neither listed nor readable any more."""
    (root,) = aged.shard_ids()
    iterator = aged.run(aged.port.get_iterator(root, FROM_THE_START))
    aged.settings(iterator_lifetime_ms=10**9)
    aged.split(root)
    aged.advance(timedelta(hours=25))
    assert root not in aged.shard_ids()
    with pytest.raises(NotFoundError):
        aged.run(aged.port.get_iterator(root, FROM_THE_START))
    with pytest.raises(NotFoundError):
        aged.run(aged.port.get_records(iterator, limit=10))


def test_too_many_calls_are_throttled(aged: StreamCase) -> None:
    """With limits enabled, the sixth read within a second is a ThrottledError, and the iterator stays valid."""
    (shard,) = aged.shard_ids()
    aged.settings(enforce_limits=True)
    iterator = aged.run(aged.port.get_iterator(shard, FROM_THE_START))

    async def hurry() -> None:
        for _ in range(100):
            await aged.port.get_records(iterator, limit=10)

    with pytest.raises(ThrottledError):
        aged.run(hurry())
    aged.advance(timedelta(seconds=2))
    assert aged.run(aged.port.get_records(iterator, limit=10)).next_iterator


def test_a_stream_that_is_being_created_is_unavailable(aged: StreamCase) -> None:
    """The error says that waiting helps."""
    aged.settings(status_delay_ms=60_000)
    aged.delete()
    with pytest.raises(UnavailableError, match="ACTIVE"):
        aged.run(aged.port.list_shards())
