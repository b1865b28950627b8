"""Consumers and their subscriptions."""

import pytest

from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError
from leasehold.kinesis_model.reading import IteratorType, StartingPosition
from leasehold.kinesis_model.service import Subscription
from tests.unit.kinesis_model.model_under_test import ModelUnderTest, shard_id_of

OLDEST = StartingPosition(IteratorType.TRIM_HORIZON)


def subscribe(
    world: ModelUnderTest, name: str = "c", shard: int = 0, start: StartingPosition = OLDEST
) -> Subscription:
    arn = world.service.consumer(world.now_ms, "s", name).arn
    return world.service.subscribe(world.now_ms, arn, shard_id_of(shard), start)


def world_with_consumer(**settings: int) -> ModelUnderTest:
    world = ModelUnderTest(**settings)
    world.service.register_consumer(world.now_ms, "s", "c")
    return world


def test_a_consumer_is_registered_once() -> None:
    """A second of the same name is refused; after it was deregistered the name is free, with another ARN."""
    world = world_with_consumer()
    first = world.service.consumer(world.now_ms, "s", "c").arn
    with pytest.raises(KinesisApiError) as error:
        world.service.register_consumer(world.now_ms, "s", "c")
    assert error.value.error_type == ErrorType.IN_USE
    world.service.deregister_consumer(world.now_ms, "s", "c")
    world.now_ms += 1000
    assert world.service.register_consumer(world.now_ms, "s", "c").arn != first


def test_a_stream_has_at_most_twenty_consumers() -> None:
    """The twenty-first is refused."""
    world = ModelUnderTest()
    for number in range(20):
        world.service.register_consumer(world.now_ms, "s", f"c{number}")
    with pytest.raises(KinesisApiError) as error:
        world.service.register_consumer(world.now_ms, "s", "one more")
    assert error.value.error_type == ErrorType.LIMIT_EXCEEDED


def test_a_consumer_can_take_time_to_become_active() -> None:
    """A subscription before that is refused."""
    world = ModelUnderTest(status_delay_ms=500)
    world.now_ms += 500
    consumer = world.service.register_consumer(world.now_ms, "s", "c")
    assert consumer.status(world.now_ms) == "CREATING"
    with pytest.raises(KinesisApiError, match="CREATING"):
        subscribe(world)
    world.now_ms += 500
    subscribe(world)


def test_a_second_subscription_within_five_seconds_is_refused() -> None:
    """Whether or not the first caller is still there: the service counts from the successful call."""
    world = world_with_consumer()
    first = subscribe(world)
    world.now_ms += 4_999
    with pytest.raises(KinesisApiError, match="Another active subscription") as error:
        subscribe(world)
    assert error.value.error_type == ErrorType.IN_USE
    assert world.service.is_current_subscription(world.now_ms, first)


def test_a_second_subscription_after_five_seconds_takes_over() -> None:
    """The first one is lost, and cannot end the second."""
    world = world_with_consumer()
    first = subscribe(world)
    world.now_ms += 5_000
    second = subscribe(world)
    assert [world.service.is_current_subscription(world.now_ms, one) for one in (first, second)] == [
        False,
        True,
    ]
    world.service.end_subscription(world.now_ms, first)
    with pytest.raises(KinesisApiError):
        subscribe(world)


def test_a_subscription_that_came_to_its_end_can_be_renewed_at_once() -> None:
    """After the five minutes, or the end of a shard, the next call need not wait."""
    world = world_with_consumer()
    world.service.end_subscription(world.now_ms, subscribe(world))
    subscribe(world)


def test_shards_and_consumers_do_not_hinder_each_other() -> None:
    """One subscription for each pair of consumer and shard."""
    world = ModelUnderTest(shards=2)
    for name in ("a", "b"):
        world.service.register_consumer(world.now_ms, "s", name)
    held = [subscribe(world, name, shard) for name in ("a", "b") for shard in (0, 1)]
    assert all(world.service.is_current_subscription(world.now_ms, subscription) for subscription in held)


def test_a_deregistered_consumer_holds_nothing() -> None:
    """Its subscription is lost, and its ARN unknown."""
    world = world_with_consumer()
    subscription = subscribe(world)
    arn = world.service.consumer(world.now_ms, "s", "c").arn
    world.service.deregister_consumer(world.now_ms, "s", "c")
    assert not world.service.is_current_subscription(world.now_ms, subscription)
    with pytest.raises(KinesisApiError) as error:
        world.service.subscribe(world.now_ms, arn, shard_id_of(0), OLDEST)
    assert error.value.error_type == ErrorType.NOT_FOUND


def test_events_go_on_after_their_continuation() -> None:
    """The continuation number of a page, empty or not, leads to exactly what follows."""
    world = world_with_consumer()
    subscription = subscribe(world)
    empty = world.service.read_subscription(world.now_ms, subscription, subscription.next_number)
    assert len(empty.records) == 0
    world.put(b"a")
    assert world.read(kind="AFTER_SEQUENCE_NUMBER", number=str(empty.continuation_number)) == [b"a"]
    page = world.service.read_subscription(world.now_ms, subscription, subscription.next_number)
    world.put(b"b")
    assert world.read(kind="AFTER_SEQUENCE_NUMBER", number=str(page.continuation_number)) == [b"b"]


def test_a_stream_with_consumers_is_deleted_only_on_purpose() -> None:
    """The refusal names the switch."""
    world = world_with_consumer()
    with pytest.raises(KinesisApiError, match="EnforceConsumerDeletion"):
        world.service.delete_stream(world.now_ms, "s")
    world.service.delete_stream(world.now_ms, "s", with_consumers=True)
    assert world.service.stream_names(world.now_ms) == []
