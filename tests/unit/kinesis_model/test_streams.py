"""Streams: status, retention, settings, names."""

import pytest

from leasehold.errors import ConfigError
from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError
from leasehold.kinesis_model.service import KinesisModel, add_tags
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.kinesis_model.stream import StreamMode, StreamStatus
from tests.unit.kinesis_model.model_under_test import BEGIN_MS, HOUR_MS, ModelUnderTest


def test_a_stream_is_active_at_once_by_default() -> None:
    """Changes take no time unless a delay is set."""
    model = ModelUnderTest(shards=3)
    assert (model.stream.status, len(model.stream.open_shards)) == (StreamStatus.ACTIVE, 3)


def test_a_stream_is_active_after_the_delay() -> None:
    """While CREATING it has no shards and accepts no records."""
    model = ModelUnderTest(shards=2, status_delay_ms=500)
    assert (model.stream.status, len(model.stream.shards)) == (StreamStatus.CREATING, 0)
    with pytest.raises(KinesisApiError) as error:
        model.put()
    assert error.value.error_type == ErrorType.NOT_FOUND
    with pytest.raises(KinesisApiError) as error:
        model.list_shards()
    assert error.value.error_type == ErrorType.IN_USE
    model.now_ms += 500
    assert (model.stream.status, model.list_shards("AT_TRIM_HORIZON")) == (StreamStatus.ACTIVE, [0, 1])
    model.put()


def test_a_reshard_is_applied_after_the_delay() -> None:
    """While UPDATING records still go to the parent, and other changes are refused."""
    model = ModelUnderTest(status_delay_ms=500)
    model.now_ms += 500
    model.split()
    model.put(b"to the parent")
    assert (model.stream.status, model.list_shards("AT_LATEST")) == (StreamStatus.UPDATING, [0])
    with pytest.raises(KinesisApiError, match="UPDATING") as error:
        model.split()
    assert error.value.error_type == ErrorType.IN_USE
    model.now_ms += 500
    assert (model.stream.status, model.list_shards("AT_LATEST")) == (StreamStatus.ACTIVE, [1, 2])
    assert model.read(0) == [b"to the parent"]


def test_a_stream_is_deleted_after_the_delay() -> None:
    """While DELETING it is still described. Afterwards it is unknown and its name is free."""
    model = ModelUnderTest(status_delay_ms=500)
    model.now_ms += 500
    model.service.delete_stream(model.now_ms, "s")
    assert model.stream.status is StreamStatus.DELETING
    model.now_ms += 500
    with pytest.raises(KinesisApiError):
        assert model.stream
    model.service.create_stream(model.now_ms, "s", shard_count=1)


def test_a_stream_created_again_has_higher_numbers() -> None:
    """The numbers are higher even within one millisecond."""
    model = ModelUnderTest()
    old = model.put().number
    model.service.delete_stream(model.now_ms, "s")
    model.service.create_stream(model.now_ms, "s", shard_count=1)
    assert model.put().number > old


def test_the_error_for_an_unknown_stream_names_account_and_region() -> None:
    """The error names the requested stream and where it was looked up."""
    with pytest.raises(
        KinesisApiError, match=r"nothing-here under account 000000000000 not found .*us-east-1"
    ) as error:
        KinesisModel().stream(BEGIN_MS, "nothing-here")
    assert error.value.error_type == ErrorType.NOT_FOUND


def test_an_on_demand_stream_begins_with_four_shards() -> None:
    """It accepts no shard count."""
    model = ModelUnderTest()
    model.service.create_stream(model.now_ms, "od", mode=StreamMode.ON_DEMAND)
    assert len(model.service.stream(model.now_ms, "od").open_shards) == 4
    with pytest.raises(KinesisApiError, match="ON_DEMAND"):
        model.service.create_stream(model.now_ms, "other", mode=StreamMode.ON_DEMAND, shard_count=2)


def test_stream_names_are_sorted() -> None:
    """The names after a given name are returned."""
    service = KinesisModel()
    for name in ("b", "a", "c"):
        service.create_stream(BEGIN_MS, name, shard_count=1)
    assert service.stream_names(BEGIN_MS) == ["a", "b", "c"]
    assert service.stream_names(BEGIN_MS, after="a") == ["b", "c"]


# Retention


def test_records_are_trimmed_after_the_retention_period() -> None:
    """A record is readable for 24 hours, and not after."""
    model = ModelUnderTest()
    model.put(b"old")
    model.now_ms += 24 * HOUR_MS
    assert model.read() == [b"old"]
    model.now_ms += 1
    assert model.read() == []


def test_a_longer_retention_keeps_retained_records() -> None:
    """It does not bring back trimmed records."""
    model = ModelUnderTest()
    model.put(b"gone")
    model.now_ms += 20 * HOUR_MS
    model.put(b"kept")
    model.now_ms += 5 * HOUR_MS
    model.service.increase_retention(model.now_ms, "s", 48)
    assert model.read() == [b"kept"]
    model.now_ms += 24 * HOUR_MS
    assert model.read() == [b"kept"]


def test_a_shorter_retention_trims_at_once() -> None:
    """A longer retention afterwards does not bring the records back."""
    model = ModelUnderTest()
    model.service.increase_retention(model.now_ms, "s", 48)
    model.put(b"old")
    model.now_ms += 30 * HOUR_MS
    model.service.decrease_retention(model.now_ms, "s", 24)
    model.service.increase_retention(model.now_ms, "s", 48)
    assert model.read() == []


def test_a_longer_retention_does_not_move_the_trim_horizon_back() -> None:
    """The shards open at the horizon are those of the oldest retained records."""
    model = ModelUnderTest()
    model.now_ms += HOUR_MS
    model.split()
    model.now_ms += 24 * HOUR_MS
    assert model.list_shards("AT_TRIM_HORIZON") == [1, 2]
    model.service.increase_retention(model.now_ms, "s", 48)
    assert model.list_shards("AT_TRIM_HORIZON") == [1, 2]
    assert model.list_shards() == [1, 2]


@pytest.mark.parametrize("hours", [0, 23, 8761])
def test_retention_is_a_day_to_a_year(hours: int) -> None:
    """The error names the value and the bounds."""
    model = ModelUnderTest()
    for change in (model.service.increase_retention, model.service.decrease_retention):
        with pytest.raises(KinesisApiError, match=f"{hours} hours.*24..8760"):
            change(model.now_ms, "s", hours)


def test_retention_errors_name_the_right_operation() -> None:
    """Increase does not shorten, Decrease does not lengthen."""
    model = ModelUnderTest()
    model.service.increase_retention(model.now_ms, "s", 48)
    with pytest.raises(KinesisApiError, match="Use Decrease"):
        model.service.increase_retention(model.now_ms, "s", 24)
    with pytest.raises(KinesisApiError, match="Use Increase"):
        model.service.decrease_retention(model.now_ms, "s", 72)


def test_trim_all_removes_all_records_and_closed_shards() -> None:
    """A record written afterwards, in the same millisecond, stays."""
    model = ModelUnderTest()
    model.put(b"old")
    model.split()
    model.stream.trim_all_records()
    model.put(b"new", hash_key=0)
    assert model.list_shards() == [1, 2]
    assert model.list_shards("AT_TRIM_HORIZON") == [1, 2]
    assert model.read(1) == [b"new"]


# Names and settings


def test_a_name_and_an_arn_must_agree() -> None:
    """Either is enough. Both are accepted if they name the same stream."""
    account = ModelUnderTest().service.account
    arn = account.stream_arn("orders")
    assert account.resolve_stream_name("orders", arn) == account.resolve_stream_name(None, arn) == "orders"
    with pytest.raises(KinesisApiError, match="two different streams"):
        account.resolve_stream_name("other", arn)
    with pytest.raises(KinesisApiError, match="Either StreamName or StreamARN"):
        account.resolve_stream_name(None, None)
    with pytest.raises(KinesisApiError, match="not the ARN of a stream"):
        account.resolve_stream_name(None, "arn:aws:s3:::bucket")


def test_an_arn_of_another_account_is_not_found() -> None:
    """The error shows the form of the ARNs of this account."""
    with pytest.raises(KinesisApiError, match="000000000000:stream/") as error:
        ModelUnderTest().service.account.resolve_stream_name(
            None, "arn:aws:kinesis:us-east-1:999999999999:stream/s"
        )
    assert error.value.error_type == ErrorType.NOT_FOUND


def test_a_stream_has_at_most_fifty_tags() -> None:
    """Setting an existing tag again does not count twice."""
    stream = ModelUnderTest().stream
    add_tags(stream, {f"tag-{number}": "" for number in range(50)})
    add_tags(stream, {"tag-0": "again"})
    with pytest.raises(KinesisApiError, match="more than 50 tags"):
        add_tags(stream, {"one more": ""})
    assert stream.config.tags["tag-0"] == "again"


@pytest.mark.parametrize(
    "wrong",
    [{"iterator_lifetime_ms": -1}, {"status_delay_ms": 1.5}, {"enforce_limits": 1}, {"heartbeat_ms": 0}],
)
def test_an_invalid_setting_is_refused(wrong: dict[str, object]) -> None:
    """The error names the setting and the value."""
    (name, value) = next(iter(wrong.items()))
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        ServiceSettings(**wrong)  # type: ignore[arg-type]
