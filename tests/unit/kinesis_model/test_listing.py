"""ListShards: filters and pages."""

import pytest

from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError
from leasehold.kinesis_model.listing import FilterType, ListQuery, ShardFilter
from tests.unit.kinesis_model.model_under_test import BEGIN_MS, HOUR_MS, ModelUnderTest, shard_id_of

MINUTE_MS = 60_000


def history() -> ModelUnderTest:
    """Return a model with reshards: 0 splits into 1 and 2 after a minute, 1 into 3 and 4 after two, 3 and 4 merge into
    5 after three.
    """
    model = ModelUnderTest()
    model.now_ms += MINUTE_MS
    model.split(0)
    model.now_ms += MINUTE_MS
    model.split(1, at=2**126)
    model.now_ms += MINUTE_MS
    model.merge(3, 4)
    model.now_ms += MINUTE_MS
    return model


def test_no_filter_lists_all_retained_shards() -> None:
    """Closed shards are listed as long as they have records."""
    assert history().list_shards() == [0, 1, 2, 3, 4, 5]


def test_at_latest_lists_the_open_shards() -> None:
    """Open shards are those that accept records."""
    assert history().list_shards("AT_LATEST") == [2, 5]


def test_at_trim_horizon_lists_the_shards_open_at_the_horizon() -> None:
    """At first that is the root; later it is its descendants that were open at the horizon."""
    model = history()
    assert model.list_shards("AT_TRIM_HORIZON") == [0]
    model.now_ms = BEGIN_MS + 24 * HOUR_MS + 90_000
    assert model.list_shards("AT_TRIM_HORIZON") == [1, 2]
    model.now_ms = BEGIN_MS + 24 * HOUR_MS + 150_000
    assert model.list_shards("AT_TRIM_HORIZON") == [2, 3, 4]


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
    """AT_TIMESTAMP lists shards open at that time, FROM_TIMESTAMP those open then or later."""
    time_ms = BEGIN_MS + int(minutes * MINUTE_MS)
    model = history()
    assert model.list_shards("AT_TIMESTAMP", timestamp_ms=time_ms) == at
    assert model.list_shards("FROM_TIMESTAMP", timestamp_ms=time_ms) == since


def test_a_time_before_the_horizon_means_the_horizon() -> None:
    """A time before the trim horizon lists the shards of the oldest retained records."""
    model = history()
    model.now_ms = BEGIN_MS + 24 * HOUR_MS + 90_000
    assert model.list_shards("AT_TIMESTAMP", timestamp_ms=BEGIN_MS) == [1, 2]
    assert model.list_shards("FROM_TIMESTAMP", timestamp_ms=BEGIN_MS) == [1, 2, 3, 4, 5]


def test_after_shard_id_lists_the_following_ids() -> None:
    """The given shard need not exist."""
    assert history().list_shards("AFTER_SHARD_ID", shard_id=shard_id_of(3)) == [4, 5]
    assert history().list_shards("AFTER_SHARD_ID", shard_id=shard_id_of(99)) == []


def test_a_closed_shard_is_listed_until_its_retention_ends() -> None:
    """It is listed up to the last millisecond of its retention, and not after."""
    model = history()
    model.now_ms = BEGIN_MS + MINUTE_MS + 24 * HOUR_MS - 1
    assert model.list_shards() == [0, 1, 2, 3, 4, 5]
    model.now_ms += 1
    assert model.list_shards() == [1, 2, 3, 4, 5]


def test_intermediate_shards_of_a_scaling_are_listed_but_never_open() -> None:
    """They are parents and children of listed shards, but were open at no time."""
    model = ModelUnderTest(shards=2)
    model.now_ms += 1000
    model.service.update_shard_count(model.now_ms, "s", 3)
    assert len(model.list_shards()) == 7
    assert len(model.list_shards("AT_TIMESTAMP", timestamp_ms=model.now_ms)) == 3
    assert model.list_shards("AT_TRIM_HORIZON") == [0, 1]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("AT_TIMESTAMP", {}),
        ("FROM_TIMESTAMP", {"shard_id": "shardId-000000000000"}),
        ("AFTER_SHARD_ID", {}),
        ("AT_LATEST", {"timestamp_ms": 5}),
    ],
)
def test_a_filter_with_missing_or_unneeded_values_is_refused(kind: str, value: dict[str, object]) -> None:
    """A missing or an unneeded value is an invalid argument."""
    with pytest.raises(KinesisApiError, match="no other type takes one") as error:
        ModelUnderTest().list_shards(kind, **value)
    assert error.value.error_type == ErrorType.INVALID_ARGUMENT


def pages(model: ModelUnderTest, query: ListQuery, limit: int) -> list[list[str]]:
    """Return all pages of a listing, each by the token of the page before."""
    found: list[list[str]] = []
    page = model.service.list_shards(model.now_ms, query, limit)
    while page.next_token:
        found.append([shard.id for shard in page.shards])
        following = model.service.list_query_from_token(model.now_ms, page.next_token)
        page = model.service.list_shards(model.now_ms, following, limit)
    return [*found, [shard.id for shard in page.shards]]


def test_pages_keep_the_filter() -> None:
    """A token contains stream, filter and position: all pages together equal the unpaged list."""
    model = history()
    query = ListQuery("s", ShardFilter(FilterType.FROM_TIMESTAMP, timestamp_ms=BEGIN_MS + MINUTE_MS))
    assert pages(model, query, 2) == [
        [shard_id_of(1), shard_id_of(2)],
        [shard_id_of(3), shard_id_of(4)],
        [shard_id_of(5)],
    ]


def test_the_last_page_has_no_token() -> None:
    """It has none even if the list ends exactly with the page."""
    model = ModelUnderTest(shards=4)
    assert [len(page) for page in pages(model, ListQuery("s"), 2)] == [2, 2]


def test_a_token_expires_after_five_minutes() -> None:
    """The error says to start the listing again."""
    model = ModelUnderTest(shards=2)
    token = model.service.list_shards(model.now_ms, ListQuery("s"), 1).next_token
    assert token
    model.service.list_query_from_token(model.now_ms + 300_000, token)
    with pytest.raises(KinesisApiError, match="start the listing again") as error:
        model.service.list_query_from_token(model.now_ms + 300_001, token)
    assert error.value.error_type == ErrorType.TOKEN_EXPIRED


def test_an_iterator_is_refused_as_a_listing_token() -> None:
    """Tokens of one kind are not accepted as another kind."""
    model = ModelUnderTest()
    with pytest.raises(KinesisApiError, match="Invalid NextToken"):
        model.service.list_query_from_token(model.now_ms, model.iterator())
