"""The contract of the `FanOut` port: one suite for fan-out in memory and for the AWS adapter on real servers."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any, Protocol

import pytest
from botocore.exceptions import ClientError

from leasehold.core.model import HASH_KEY_MAX, ChildShard, HashRange, ShardId
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.errors import ConfigError, InUseError, NotFoundError
from leasehold.kinesis_model.api_errors import KinesisApiError
from leasehold.local import LocalKinesis
from leasehold.ports import SubscriptionEvent
from tests.contract.stream_ports import FROM_THE_START, MIDDLE, MemoryCase, ServerCase, StreamCase
from tests.contract.streams import eventually

LATEST = IteratorStart(IteratorKind.LATEST)
TAKEOVER_S = 5  # from then on, another subscription replaces the first


class Make(Protocol):
    """Creates a stream with this number of shards."""

    def __call__(self, shards: int = 1, **options: Any) -> StreamCase: ...


SERVERS = [
    "memory",
    "local_kinesis",
    "local_kinesis over HTTP/2",
    "ministack",
    "ministack over HTTP/2",
    "kinesis_local",
]
OVER_HTTP2 = " over HTTP/2"


@pytest.fixture(params=SERVERS)
def case(request: pytest.FixtureRequest, unique_name: Callable[[str], str]) -> Iterator[StreamCase]:
    """A stream of one shard on each server in turn."""
    with closing(_case(request, request.param, unique_name("fan-out"))) as made:
        yield made
        with suppress(ClientError, KinesisApiError):
            made.delete()


def _case(request: pytest.FixtureRequest, server: str, name: str) -> StreamCase:
    if server == "memory":
        return MemoryCase(name, 1)
    fixture = request.getfixturevalue(server.removesuffix(OVER_HTTP2))
    url = fixture.endpoint_url if isinstance(fixture, LocalKinesis) else fixture.url
    return ServerCase(server, url, name, 1, http2=server.endswith(OVER_HTTP2))


@pytest.fixture(params=["memory", "local_kinesis", "local_kinesis over HTTP/2"])
def aged(request: pytest.FixtureRequest) -> Iterator[StreamCase]:
    """A stream of one shard that can be resharded, and whose time and settings can be changed."""
    if request.param == "memory":
        with closing(MemoryCase("orders", 1)) as case:
            yield case
        return
    with (
        LocalKinesis.in_thread() as server,
        closing(
            ServerCase(
                "local_kinesis",
                server.endpoint_url,
                "orders",
                1,
                local=server,
                http2=request.param.endswith(OVER_HTTP2),
            )
        ) as case,
    ):
        yield case


def data_of(events: Sequence[SubscriptionEvent]) -> list[bytes]:
    return [record.data for event in events for record in event.records]


def after(number: str | None) -> IteratorStart:
    return IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=number)


# -- consumers -----------------------------------------------------------------------------------------------------


def test_a_consumer_is_registered_once(case: StreamCase) -> None:
    """It is described by name and by ARN, and a second registration says that it exists."""
    consumer = case.register("orders-app")
    assert (consumer.name, consumer.status) == ("orders-app", "ACTIVE")
    assert abs(consumer.created_ms - case.now_ms()) < 3_600_000
    for name_or_arn in ("orders-app", consumer.arn):
        assert case.run(case.fan_out.describe_consumer(name_or_arn)) == consumer
    with pytest.raises(InUseError):
        case.run(case.fan_out.register_consumer("orders-app"))
    assert case.run(case.fan_out.list_consumers()) == [consumer]


def test_a_deregistered_consumer_is_not_found(case: StreamCase) -> None:
    consumer = case.register()
    case.run(case.fan_out.deregister_consumer(consumer.arn))
    eventually(lambda: not case.run(case.fan_out.list_consumers()), "the consumer is deleted")
    with pytest.raises(NotFoundError):
        case.run(case.fan_out.describe_consumer("reader"))
    with pytest.raises(NotFoundError):
        case.run(case.fan_out.subscribe(consumer.arn, case.shard_ids()[0], FROM_THE_START))


def test_a_stream_that_is_deleted_is_not_found(case: StreamCase) -> None:
    """From the moment in which its deletion begins."""
    case.run(case.fan_out.require_stream())
    case.delete()
    with pytest.raises(NotFoundError):
        case.run(case.fan_out.require_stream())


def test_a_consumer_of_another_stream_is_a_mistake(aged: StreamCase) -> None:
    """The error names the stream. Its records must not be read as those of this one."""
    consumer = aged.register()
    with pytest.raises((ConfigError, NotFoundError)):
        aged.run(aged.fan_out.describe_consumer(consumer.arn.replace("stream/orders/", "stream/others/")))


def test_every_page_of_consumers_is_listed(aged: StreamCase) -> None:
    names = [f"app-{number:02}" for number in range(20)]
    for name in names:
        aged.register(name)
    assert [each.name for each in aged.run(aged.fan_out.list_consumers())] == names


# -- events --------------------------------------------------------------------------------------------------------


def test_old_and_new_records_arrive_in_order(case: StreamCase) -> None:
    """Bytes, keys and numbers are unchanged, and each event says where to continue."""
    numbers = [case.put(bytes(range(256)), key="schlüssel")]
    consumer = case.register()
    subscription = case.subscribe(consumer, case.shard_ids()[0])
    events = case.events_until(subscription, 1)
    (record,) = events[-1].records
    assert (record.data, record.partition_key) == (bytes(range(256)), "schlüssel")
    assert record.arrival_ms is not None
    assert abs(record.arrival_ms - case.now_ms()) < 3_600_000
    numbers += [case.put(b"1"), case.put(b"")]
    events += case.events_until(subscription, 2)
    assert data_of(events)[1:] == [b"1", b""]
    assert [record.sequence_number for event in events for record in event.records] == numbers
    assert events[-1].continuation == numbers[-1]
    assert events[-1].millis_behind is not None


def test_every_start_is_supported(case: StreamCase) -> None:
    """At the oldest record, at a record, after it, at a time."""
    numbers = [case.put(b"%d" % number) for number in range(3)]
    (shard,) = case.shard_ids()

    def data_from(number: int, kind: IteratorKind, **detail: Any) -> list[bytes]:
        consumer = case.register(kind.name)
        subscription = case.subscribe(consumer, shard, IteratorStart(kind, **detail))
        return data_of(case.events_until(subscription, number))

    assert data_from(3, IteratorKind.TRIM_HORIZON) == [b"0", b"1", b"2"]
    assert data_from(2, IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=numbers[1]) == [b"1", b"2"]
    assert data_from(1, IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=numbers[1]) == [b"2"]
    hour_ago_ms = case.now_ms() - 3_600_123
    assert data_from(3, IteratorKind.AT_TIMESTAMP, timestamp_ms=hour_ago_ms) == [b"0", b"1", b"2"]


def test_latest_delivers_only_new_records(case: StreamCase) -> None:
    case.put(b"before")
    consumer = case.register()
    subscription = case.subscribe(consumer, case.shard_ids()[0], LATEST)
    case.put(b"after")
    assert data_of(case.events_until(subscription, 1)) == [b"after"]


def test_a_continuation_number_misses_and_repeats_nothing(case: StreamCase) -> None:
    """After the connection was closed, also while an event was awaited."""
    case.put(b"a")
    case.put(b"b")
    consumer = case.register()
    (shard,) = case.shard_ids()
    first = case.subscribe(consumer, shard)
    events = case.events_until(first, 2)

    async def close_while_waiting() -> None:
        waiting = asyncio.ensure_future(anext(first))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await first.close()
        await first.close()

    case.run(close_while_waiting())
    case.put(b"c")
    second = case.subscribe(consumer, shard, after(events[-1].continuation))
    assert data_of(events) + data_of(case.events_until(second, 1)) == [b"a", b"b", b"c"]


def test_a_large_event_arrives_whole(case: StreamCase) -> None:
    """Larger than all buffers on the way."""
    data = [bytes([number]) * 900_000 for number in range(2)]
    for each in data:
        case.put(each)
    consumer = case.register()
    subscription = case.subscribe(consumer, case.shard_ids()[0])
    assert data_of(case.events_until(subscription, 2)) == data


# -- errors and ends -----------------------------------------------------------------------------------------------


def test_a_second_subscription_at_once_is_in_use(case: StreamCase) -> None:
    """The first one continues. If the second one came too late, because the machine is busy, there is another try."""
    (shard,) = case.shard_ids()
    for number in range(3):
        consumer = case.register(f"reader-{number}")
        began_s = time.monotonic()
        first = case.subscribe(consumer, shard)
        try:
            case.run(case.fan_out.subscribe(consumer.arn, shard, FROM_THE_START))
        except InUseError:
            break
        assert time.monotonic() - began_s >= TAKEOVER_S
    else:
        pytest.fail("each second subscription came too late")
    case.put(b"for the first")
    assert data_of(case.events_until(first, 1)) == [b"for the first"]


def test_an_unknown_shard_is_not_found(aged: StreamCase) -> None:
    """A worker treats it as a shard that is gone."""
    consumer = aged.register()
    with pytest.raises(NotFoundError):
        aged.run(aged.fan_out.subscribe(consumer.arn, ShardId("shardId-000000000077"), FROM_THE_START))


def test_the_last_event_of_a_shard_lists_its_children(aged: StreamCase) -> None:
    """After it, the subscription ends."""
    aged.put(b"last")
    consumer = aged.register()
    (root,) = aged.shard_ids()
    subscription = aged.subscribe(consumer, root)
    assert data_of(aged.events_until(subscription, 1)) == [b"last"]
    aged.split(root)
    _, left, right = aged.shard_ids()
    end = aged.rest_of(subscription)[-1]
    assert (end.continuation, list(end.records)) == (None, [])
    assert sorted(end.children, key=lambda child: child.id) == [
        ChildShard(left, (root,), HashRange(0, MIDDLE - 1)),
        ChildShard(right, (root,), HashRange(MIDDLE, HASH_KEY_MAX)),
    ]


def test_a_subscription_ends_after_five_minutes(aged: StreamCase) -> None:
    """Without an error, and it can be renewed at once. Empty events say where to continue until then."""
    number = aged.put(b"x")
    consumer = aged.register()
    (shard,) = aged.shard_ids()
    aged.settings(heartbeat_ms=50)
    subscription = aged.subscribe(consumer, shard)
    events = aged.events_until(subscription, 1)
    empty = aged.run(_next_event(subscription))
    assert (list(empty.records), empty.continuation, empty.millis_behind) == ([], number, 0)
    aged.advance(timedelta(minutes=5))
    assert data_of(aged.rest_of(subscription)) == []
    aged.put(b"y")
    renewed = aged.run(aged.fan_out.subscribe(consumer.arn, shard, after(events[-1].continuation)))
    assert data_of(aged.events_until(renewed, 1)) == [b"y"]


def test_a_later_subscription_replaces_the_first(aged: StreamCase) -> None:
    """After five seconds. The first one ends with an error."""
    consumer = aged.register()
    (shard,) = aged.shard_ids()
    first = aged.subscribe(consumer, shard)
    aged.advance(timedelta(seconds=5))
    second = aged.run(aged.fan_out.subscribe(consumer.arn, shard, FROM_THE_START))
    with pytest.raises(InUseError):
        aged.rest_of(first)
    aged.put(b"for the second")
    assert data_of(aged.events_until(second, 1)) == [b"for the second"]


def test_a_subscription_ends_with_its_consumer(aged: StreamCase) -> None:
    """A worker must not take this for the end of the shard."""
    consumer = aged.register()
    subscription = aged.subscribe(consumer, aged.shard_ids()[0])
    aged.run(aged.fan_out.deregister_consumer(consumer.arn))
    with pytest.raises(NotFoundError):
        aged.rest_of(subscription)


async def _next_event(subscription: Any) -> SubscriptionEvent:
    async with asyncio.timeout(60):
        event: SubscriptionEvent = await anext(subscription)
        return event
