"""ListShards: filters and pages."""

import pytest

from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError
from leasehold.kinesis_model.listing import FilterType, ListQuery, ShardFilter
from tests.unit.kinesis_model.model_under_test import BEGIN_MS, HOUR_MS, ModelUnderTest, shard_id_of

MINUTE_MS = 60_000


def history() -> ModelUnderTest:
    """0 split into 1 and 2 after a minute; 1 split into 3 and 4 after two; 3 and 4 merged into 5 after three."""
    world = ModelUnderTest()
    world.now_ms += MINUTE_MS
    world.split(0)
    world.now_ms += MINUTE_MS
    world.split(1, at=2**126)
    world.now_ms += MINUTE_MS
    world.merge(3, 4)
    world.now_ms += MINUTE_MS
    return world


def test_no_filter_lists_everything_that_is_retained() -> None:
    """Closed shards are listed as long as they have records to give."""
    assert history().listed() == [0, 1, 2, 3, 4, 5]


def test_at_latest_lists_what_is_open() -> None:
    """Shards that take records now."""
    assert history().listed("AT_LATEST") == [2, 5]


def test_at_trim_horizon_lists_what_was_open_at_the_oldest_record() -> None:
    """First the root alone; as time goes on, the generation that was open at the horizon."""
    world = history()
    assert world.listed("AT_TRIM_HORIZON") == [0]
    world.now_ms = BEGIN_MS + 24 * HOUR_MS + 90_000
    assert world.listed("AT_TRIM_HORIZON") == [1, 2]
    world.now_ms = BEGIN_MS + 24 * HOUR_MS + 150_000
    assert world.listed("AT_TRIM_HORIZON") == [2, 3, 4]


@pytest.mark.parametrize(
    ("minutes", "at", "since"),
    [
        (-5, [0], [0, 1, 2, 3, 4, 5]),
        (0, [0], [0, 1, 2, 3, 4, 5]),
        (0.5, [0], [0, 1, 2, 3, 4, 5]),
        (1, [1, 2], [1, 2, 3, 4, 5]),
        (1.5, [1, 2], [1, 2, 3, 4, 5]),
        (2.5, [2, 3, 4], [2, 3, 4, 5]),
        (3.5, [2, 5], [2, 5]),
        (99, [2, 5], [2, 5]),
    ],
)
def test_filters_by_time(minutes: float, at: list[int], since: list[int]) -> None:
    """AT_TIMESTAMP: open at that moment. FROM_TIMESTAMP: open then or later. Never a parent beside its child."""
    time_ms = BEGIN_MS + int(minutes * MINUTE_MS)
    world = history()
    assert world.listed("AT_TIMESTAMP", timestamp_ms=time_ms) == at
    assert world.listed("FROM_TIMESTAMP", timestamp_ms=time_ms) == since


def test_a_time_before_the_horizon_means_the_horizon() -> None:
    """Whoever asks for a time whose records are gone gets the shards of the oldest records left."""
    world = history()
    world.now_ms = BEGIN_MS + 24 * HOUR_MS + 90_000
    assert world.listed("AT_TIMESTAMP", timestamp_ms=BEGIN_MS) == [1, 2]
    assert world.listed("FROM_TIMESTAMP", timestamp_ms=BEGIN_MS) == [1, 2, 3, 4, 5]


def test_after_shard_id_lists_the_following_ids() -> None:
    """The shard named need not exist."""
    assert history().listed("AFTER_SHARD_ID", shard_id=shard_id_of(3)) == [4, 5]
    assert history().listed("AFTER_SHARD_ID", shard_id=shard_id_of(99)) == []


def test_a_closed_shard_leaves_the_list_when_its_last_moment_is_past_retention() -> None:
    """To the millisecond: still there at the end of its retention, gone after."""
    world = history()
    world.now_ms = BEGIN_MS + MINUTE_MS + 24 * HOUR_MS - 1
    assert world.listed() == [0, 1, 2, 3, 4, 5]
    world.now_ms += 1
    assert world.listed() == [1, 2, 3, 4, 5]


def test_the_shards_in_between_of_a_scaling_are_listed_but_never_open() -> None:
    """Short-lived shards belong to the genealogy, and to no moment."""
    world = ModelUnderTest(shards=2)
    world.now_ms += 1000
    world.service.update_shard_count(world.now_ms, "s", 3)
    assert len(world.listed()) == 7
    assert len(world.listed("AT_TIMESTAMP", timestamp_ms=world.now_ms)) == 3
    assert world.listed("AT_TRIM_HORIZON") == [0, 1]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("AT_TIMESTAMP", {}),
        ("FROM_TIMESTAMP", {"shard_id": "shardId-000000000000"}),
        ("AFTER_SHARD_ID", {}),
        ("AT_LATEST", {"timestamp_ms": 5}),
    ],
)
def test_a_filter_has_exactly_what_it_needs(kind: str, value: dict[str, object]) -> None:
    """A missing or a needless value is an invalid argument."""
    with pytest.raises(KinesisApiError, match="only with") as error:
        ModelUnderTest().listed(kind, **value)
    assert error.value.error_type == ErrorType.INVALID_ARGUMENT


def pages(world: ModelUnderTest, query: ListQuery, limit: int) -> list[list[str]]:
    """All pages of a listing, each by the token of the one before."""
    found: list[list[str]] = []
    page = world.service.list_shards(world.now_ms, query, limit)
    while page.next_token:
        found.append([shard.id for shard in page.shards])
        following = world.service.list_query_from_token(world.now_ms, page.next_token)
        page = world.service.list_shards(world.now_ms, following, limit)
    return [*found, [shard.id for shard in page.shards]]


def test_pages_keep_the_filter() -> None:
    """A token stands for stream, filter and place: the pages together are the unpaged list."""
    world = history()
    query = ListQuery("s", ShardFilter(FilterType.FROM_TIMESTAMP, timestamp_ms=BEGIN_MS + MINUTE_MS))
    assert pages(world, query, 2) == [
        [shard_id_of(1), shard_id_of(2)],
        [shard_id_of(3), shard_id_of(4)],
        [shard_id_of(5)],
    ]


def test_a_page_that_ends_the_list_has_no_token() -> None:
    """Also when the list ends exactly with the page."""
    world = ModelUnderTest(shards=4)
    assert [len(page) for page in pages(world, ListQuery("s"), 2)] == [2, 2]


def test_a_token_lives_five_minutes() -> None:
    """Then the listing has to begin anew, and is told so."""
    world = ModelUnderTest(shards=2)
    token = world.service.list_shards(world.now_ms, ListQuery("s"), 1).next_token
    assert token
    world.service.list_query_from_token(world.now_ms + 300_000, token)
    with pytest.raises(KinesisApiError, match="begin the listing anew") as error:
        world.service.list_query_from_token(world.now_ms + 300_001, token)
    assert error.value.error_type == ErrorType.TOKEN_EXPIRED


def test_an_iterator_is_no_token() -> None:
    """Tokens of one kind do not pass for another."""
    world = ModelUnderTest()
    with pytest.raises(KinesisApiError, match="Invalid NextToken"):
        world.service.list_query_from_token(world.now_ms, world.iterator())
