"""Consumers and their subscriptions."""

import pytest

from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError
from leasehold.kinesis_model.reading import IteratorType, StartingPosition
from leasehold.kinesis_model.service import Subscription
from tests.unit.kinesis_model.model_under_test import ModelUnderTest, shard_id_of

OLDEST = StartingPosition(IteratorType.TRIM_HORIZON)


def subscribe(
    model: ModelUnderTest, name: str = "c", shard: int = 0, start: StartingPosition = OLDEST
) -> Subscription:
    arn = model.service.consumer(model.now_ms, "s", name).arn
    return model.service.subscribe(model.now_ms, arn, shard_id_of(shard), start)


def model_with_consumer(**settings: int) -> ModelUnderTest:
    model = ModelUnderTest(**settings)
    model.service.register_consumer(model.now_ms, "s", "c")
    return model


def test_a_consumer_is_registered_once() -> None:
    """A second registration of a name is refused. A deregistered name can be registered again, with another ARN."""
    model = model_with_consumer()
    first = model.service.consumer(model.now_ms, "s", "c").arn
    with pytest.raises(KinesisApiError) as error:
        model.service.register_consumer(model.now_ms, "s", "c")
    assert error.value.error_type == ErrorType.IN_USE
    model.service.deregister_consumer(model.now_ms, "s", "c")
    model.now_ms += 1000
    assert model.service.register_consumer(model.now_ms, "s", "c").arn != first


def test_a_stream_has_at_most_twenty_consumers() -> None:
    """The twenty-first registration is refused."""
    model = ModelUnderTest()
    for number in range(20):
        model.service.register_consumer(model.now_ms, "s", f"c{number}")
    with pytest.raises(KinesisApiError) as error:
        model.service.register_consumer(model.now_ms, "s", "one more")
    assert error.value.error_type == ErrorType.LIMIT_EXCEEDED


def test_a_consumer_is_active_after_the_delay() -> None:
    """A subscription before that time is refused."""
    model = ModelUnderTest(status_delay_ms=500)
    model.now_ms += 500
    consumer = model.service.register_consumer(model.now_ms, "s", "c")
    assert consumer.status(model.now_ms) == "CREATING"
    with pytest.raises(KinesisApiError, match="CREATING"):
        subscribe(model)
    model.now_ms += 500
    subscribe(model)


def test_a_second_subscription_within_five_seconds_is_refused() -> None:
    """The five seconds count from the successful call, whether or not its client is still connected."""
    model = model_with_consumer()
    first = subscribe(model)
    model.now_ms += 4_999
    with pytest.raises(KinesisApiError, match="Another active subscription") as error:
        subscribe(model)
    assert error.value.error_type == ErrorType.IN_USE
    assert model.service.is_current_subscription(model.now_ms, first)


def test_a_second_subscription_after_five_seconds_replaces_the_first() -> None:
    """The first subscription ends and cannot end the second."""
    model = model_with_consumer()
    first = subscribe(model)
    model.now_ms += 5_000
    second = subscribe(model)
    assert [model.service.is_current_subscription(model.now_ms, one) for one in (first, second)] == [
        False,
        True,
    ]
    model.service.end_subscription(model.now_ms, first)
    with pytest.raises(KinesisApiError):
        subscribe(model)


def test_a_subscription_that_the_server_ended_can_be_renewed_at_once() -> None:
    """After five minutes, or at the end of a shard, the next call need not wait."""
    model = model_with_consumer()
    model.service.end_subscription(model.now_ms, subscribe(model))
    subscribe(model)


def test_subscriptions_of_other_shards_and_consumers_are_independent() -> None:
    """Each pair of consumer and shard has one subscription."""
    model = ModelUnderTest(shards=2)
    for name in ("a", "b"):
        model.service.register_consumer(model.now_ms, "s", name)
    held = [subscribe(model, name, shard) for name in ("a", "b") for shard in (0, 1)]
    assert all(model.service.is_current_subscription(model.now_ms, subscription) for subscription in held)


def test_a_deregistered_consumer_loses_its_subscription() -> None:
    """Its ARN is unknown afterwards."""
    model = model_with_consumer()
    subscription = subscribe(model)
    arn = model.service.consumer(model.now_ms, "s", "c").arn
    model.service.deregister_consumer(model.now_ms, "s", "c")
    assert not model.service.is_current_subscription(model.now_ms, subscription)
    with pytest.raises(KinesisApiError) as error:
        model.service.subscribe(model.now_ms, arn, shard_id_of(0), OLDEST)
    assert error.value.error_type == ErrorType.NOT_FOUND


def test_a_reader_continues_after_the_continuation_number() -> None:
    """The continuation number of a page, empty or not, leads to the next record."""
    model = model_with_consumer()
    subscription = subscribe(model)
    empty = model.service.read_subscription(model.now_ms, subscription, subscription.next_number)
    assert len(empty.records) == 0
    model.put(b"a")
    assert model.read(kind="AFTER_SEQUENCE_NUMBER", number=str(empty.continuation_number)) == [b"a"]
    page = model.service.read_subscription(model.now_ms, subscription, subscription.next_number)
    model.put(b"b")
    assert model.read(kind="AFTER_SEQUENCE_NUMBER", number=str(page.continuation_number)) == [b"b"]


def test_deleting_a_stream_with_consumers_needs_enforcement() -> None:
    """The error names EnforceConsumerDeletion."""
    model = model_with_consumer()
    with pytest.raises(KinesisApiError, match="EnforceConsumerDeletion"):
        model.service.delete_stream(model.now_ms, "s")
    model.service.delete_stream(model.now_ms, "s", with_consumers=True)
    assert model.service.stream_names(model.now_ms) == []
