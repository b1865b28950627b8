"""The life of a stream: status, retention, settings, names."""

import pytest

from leasehold.errors import ConfigError
from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError
from leasehold.kinesis_model.service import KinesisModel, add_tags
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.kinesis_model.stream import StreamMode, StreamStatus
from tests.unit.kinesis_model.model_under_test import BEGIN_MS, HOUR_MS, ModelUnderTest


def test_a_stream_is_active_at_once_by_default() -> None:
    """Nothing takes time unless it is asked to."""
    world = ModelUnderTest(shards=3)
    assert (world.stream.status, len(world.stream.open_shards)) == (StreamStatus.ACTIVE, 3)


def test_a_stream_can_take_time_to_become_active() -> None:
    """While CREATING it has no shards and takes no records; then it has both."""
    world = ModelUnderTest(shards=2, status_delay_ms=500)
    assert (world.stream.status, len(world.stream.shards)) == (StreamStatus.CREATING, 0)
    with pytest.raises(KinesisApiError) as error:
        world.put()
    assert error.value.error_type == ErrorType.NOT_FOUND
    with pytest.raises(KinesisApiError) as error:
        world.listed()
    assert error.value.error_type == ErrorType.IN_USE
    world.now_ms += 500
    assert (world.stream.status, world.listed("AT_TRIM_HORIZON")) == (StreamStatus.ACTIVE, [0, 1])
    world.put()


def test_a_reshard_can_take_time() -> None:
    """While UPDATING records still go to the parent, and nothing else can be changed."""
    world = ModelUnderTest(status_delay_ms=500)
    world.now_ms += 500
    world.split()
    world.put(b"to the parent")
    assert (world.stream.status, world.listed("AT_LATEST")) == (StreamStatus.UPDATING, [0])
    with pytest.raises(KinesisApiError, match="UPDATING") as error:
        world.split()
    assert error.value.error_type == ErrorType.IN_USE
    world.now_ms += 500
    assert (world.stream.status, world.listed("AT_LATEST")) == (StreamStatus.ACTIVE, [1, 2])
    assert world.read(0) == [b"to the parent"]


def test_a_deleted_stream_goes_when_its_time_has_come() -> None:
    """DELETING it is still described; then it is unknown and its name is free."""
    world = ModelUnderTest(status_delay_ms=500)
    world.now_ms += 500
    world.service.delete_stream(world.now_ms, "s")
    assert world.stream.status is StreamStatus.DELETING
    world.now_ms += 500
    with pytest.raises(KinesisApiError):
        assert world.stream
    world.service.create_stream(world.now_ms, "s", shard_count=1)


def test_a_stream_made_anew_numbers_above_the_old_one() -> None:
    """Within one millisecond, the second stream of a name has higher numbers than the first."""
    world = ModelUnderTest()
    old = world.put().number
    world.service.delete_stream(world.now_ms, "s")
    world.service.create_stream(world.now_ms, "s", shard_count=1)
    assert world.put().number > old


def test_a_stream_that_does_not_exist_is_named_with_account_and_region() -> None:
    """The message tells what was looked for, and where."""
    with pytest.raises(
        KinesisApiError, match=r"nothing-here under account 000000000000 not found .*us-east-1"
    ) as error:
        KinesisModel().stream(BEGIN_MS, "nothing-here")
    assert error.value.error_type == ErrorType.NOT_FOUND


def test_an_on_demand_stream_begins_with_four_shards() -> None:
    """And takes no number of shards."""
    world = ModelUnderTest()
    world.service.create_stream(world.now_ms, "od", mode=StreamMode.ON_DEMAND)
    assert len(world.service.stream(world.now_ms, "od").open_shards) == 4
    with pytest.raises(KinesisApiError, match="ON_DEMAND"):
        world.service.create_stream(world.now_ms, "other", mode=StreamMode.ON_DEMAND, shard_count=2)


def test_streams_are_named_in_order() -> None:
    """Those after a given name, sorted."""
    service = KinesisModel()
    for name in ("b", "a", "c"):
        service.create_stream(BEGIN_MS, name, shard_count=1)
    assert service.stream_names(BEGIN_MS) == ["a", "b", "c"]
    assert service.stream_names(BEGIN_MS, after="a") == ["b", "c"]


# Retention


def test_records_go_when_their_retention_is_over() -> None:
    """A record is there up to 24 hours and gone after."""
    world = ModelUnderTest()
    world.put(b"old")
    world.now_ms += 24 * HOUR_MS
    assert world.read() == [b"old"]
    world.now_ms += 1
    assert world.read() == []


def test_a_longer_retention_keeps_what_is_still_there() -> None:
    """It does not bring back what has gone."""
    world = ModelUnderTest()
    world.put(b"gone")
    world.now_ms += 20 * HOUR_MS
    world.put(b"kept")
    world.now_ms += 5 * HOUR_MS
    world.service.increase_retention(world.now_ms, "s", 48)
    assert world.read() == [b"kept"]
    world.now_ms += 24 * HOUR_MS
    assert world.read() == [b"kept"]


def test_a_shorter_retention_trims_at_once_and_for_good() -> None:
    """Raising it again does not bring the records back."""
    world = ModelUnderTest()
    world.service.increase_retention(world.now_ms, "s", 48)
    world.put(b"old")
    world.now_ms += 30 * HOUR_MS
    world.service.decrease_retention(world.now_ms, "s", 24)
    world.service.increase_retention(world.now_ms, "s", 48)
    assert world.read() == []


def test_a_longer_retention_leaves_the_trim_horizon_where_it_was() -> None:
    """The shards open at the horizon are those of the oldest records left, not of what is gone."""
    world = ModelUnderTest()
    world.now_ms += HOUR_MS
    world.split()
    world.now_ms += 24 * HOUR_MS
    assert world.listed("AT_TRIM_HORIZON") == [1, 2]
    world.service.increase_retention(world.now_ms, "s", 48)
    assert world.listed("AT_TRIM_HORIZON") == [1, 2]
    assert world.listed() == [1, 2]


@pytest.mark.parametrize("hours", [0, 23, 8761])
def test_retention_is_a_day_to_a_year(hours: int) -> None:
    """The message gives the value and the bounds."""
    world = ModelUnderTest()
    for change in (world.service.increase_retention, world.service.decrease_retention):
        with pytest.raises(KinesisApiError, match=f"{hours} hours.*24..8760"):
            change(world.now_ms, "s", hours)


def test_retention_changes_say_which_call_to_use() -> None:
    """Increase does not shorten, Decrease does not lengthen."""
    world = ModelUnderTest()
    world.service.increase_retention(world.now_ms, "s", 48)
    with pytest.raises(KinesisApiError, match="Use Decrease"):
        world.service.increase_retention(world.now_ms, "s", 24)
    with pytest.raises(KinesisApiError, match="Use Increase"):
        world.service.decrease_retention(world.now_ms, "s", 72)


def test_trimming_now_takes_all_records_and_closed_shards() -> None:
    """What is written afterwards, in the same millisecond, stays."""
    world = ModelUnderTest()
    world.put(b"old")
    world.split()
    world.stream.trim_all_records()
    world.put(b"new", hash_key=0)
    assert world.listed() == [1, 2]
    assert world.listed("AT_TRIM_HORIZON") == [1, 2]
    assert world.read(1) == [b"new"]


# Names and settings


def test_a_name_and_an_arn_must_agree() -> None:
    """Either will do, both only if they name the same stream."""
    account = ModelUnderTest().service.account
    arn = account.stream_arn("orders")
    assert account.stream_name("orders", arn) == account.stream_name(None, arn) == "orders"
    with pytest.raises(KinesisApiError, match="two different streams"):
        account.stream_name("other", arn)
    with pytest.raises(KinesisApiError, match="Either StreamName or StreamARN"):
        account.stream_name(None, None)
    with pytest.raises(KinesisApiError, match="not the ARN of a stream"):
        account.stream_name(None, "arn:aws:s3:::bucket")


def test_an_arn_of_another_account_is_not_found() -> None:
    """The message shows what the ARNs here look like."""
    with pytest.raises(KinesisApiError, match="000000000000:stream/") as error:
        ModelUnderTest().service.account.stream_name(None, "arn:aws:kinesis:us-east-1:999999999999:stream/s")
    assert error.value.error_type == ErrorType.NOT_FOUND


def test_a_stream_has_at_most_fifty_tags() -> None:
    """Setting one that is there does not count twice."""
    stream = ModelUnderTest().stream
    add_tags(stream, {f"tag-{number}": "" for number in range(50)})
    add_tags(stream, {"tag-0": "again"})
    with pytest.raises(KinesisApiError, match="more than 50 tags"):
        add_tags(stream, {"one more": ""})
    assert stream.tags["tag-0"] == "again"


@pytest.mark.parametrize(
    "wrong",
    [{"iterator_lifetime_ms": -1}, {"status_delay_ms": 1.5}, {"enforce_limits": 1}, {"heartbeat_ms": 0}],
)
def test_a_setting_that_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    """The message names the setting and the value."""
    (name, value) = next(iter(wrong.items()))
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        ServiceSettings(**wrong)  # type: ignore[arg-type]
