"""Helpers of the fan-out contract: a subscription to one shard, and its events."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.contract.streams import Stream, eventually

TRIM_HORIZON = {"Type": "TRIM_HORIZON"}
LATEST = {"Type": "LATEST"}


def after(sequence_number: str) -> dict[str, str]:
    return {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": sequence_number}


@dataclass(frozen=True, slots=True)
class Subscription:
    """An open subscription. The client's read timeout ends it if the server sends nothing."""

    events: Iterator[Mapping[str, Any]]
    disconnect: Callable[[], None]

    def next_event(self) -> Mapping[str, Any]:
        event: Mapping[str, Any] = next(self.events)["SubscribeToShardEvent"]
        return event

    def until_records(self, count: int) -> list[Mapping[str, Any]]:
        """The events up to the one that completes this number of records."""
        found: list[Mapping[str, Any]] = []
        while len(data_of(found)) < count:
            found.append(self.next_event())
        return found

    def until_end(self) -> list[Mapping[str, Any]]:
        """All events until the server ends the subscription."""
        return [event["SubscribeToShardEvent"] for event in self.events]


@dataclass(frozen=True, slots=True)
class Consumer:
    """A registered fan-out consumer of a stream. Its subscriptions are closed when the test ends."""

    stream: Stream
    arn: str
    open_subscriptions: list[Subscription] = field(default_factory=list)

    def subscribe(self, shard_id: str, position: Mapping[str, Any] = TRIM_HORIZON) -> Subscription:
        response = self.stream.client.subscribe_to_shard(
            ConsumerARN=self.arn, ShardId=shard_id, StartingPosition=position
        )
        stream = response["EventStream"]
        subscription = Subscription(iter(stream), stream.close)
        self.open_subscriptions.append(subscription)
        return subscription

    def subscribe_when_free(self, shard_id: str, position: Mapping[str, Any] = TRIM_HORIZON) -> Subscription:
        """Subscribe as soon as the server allows a second subscription."""

        def attempt() -> Subscription | None:
            try:
                return self.subscribe(shard_id, position)
            except self.stream.client.exceptions.ResourceInUseException:
                return None

        subscription = eventually(attempt, f"a new subscription to {shard_id} is allowed")
        assert isinstance(subscription, Subscription)
        return subscription


def register(stream: Stream, name: str = "reader") -> Consumer:
    """Register a consumer and wait until it is active."""
    arn = stream.client.register_stream_consumer(StreamARN=stream.arn, ConsumerName=name)["Consumer"][
        "ConsumerARN"
    ]

    def is_active() -> bool:
        described = stream.client.describe_stream_consumer(ConsumerARN=arn)["ConsumerDescription"]
        return bool(described["ConsumerStatus"] == "ACTIVE")

    eventually(is_active, f"consumer {name} becomes ACTIVE")
    return Consumer(stream, arn)


class MakeConsumer(Protocol):
    """Registers a consumer and waits until it is active."""

    def __call__(self, stream: Stream, name: str = "reader") -> Consumer: ...


def data_of(events: Sequence[Mapping[str, Any]]) -> list[bytes]:
    return [record["Data"] for event in events for record in event["Records"]]
