"""Planned faults of the local server's fan-out, as the AWS adapter sees them."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from leasehold.core.model import ShardId
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.errors import ConfigError, InUseError, UnavailableError
from leasehold.local import LocalKinesis
from leasehold.ports import ConsumerDescription, Subscription
from tests.contract.stream_ports import FROM_THE_START, ServerCase

SHARD = ShardId("shardId-000000000000")


@pytest.fixture(scope="module")
def server() -> Iterator[LocalKinesis]:
    with LocalKinesis.in_thread(settings={"takeover_after_ms": 0}) as running:
        yield running


@pytest.fixture(scope="module", params=["orders", "orders-http2"], ids=["HTTP/1.1", "HTTP/2"])
def case(server: LocalKinesis, request: pytest.FixtureRequest) -> Iterator[ServerCase]:
    http2 = request.param == "orders-http2"
    with closing(
        ServerCase("local_kinesis", server.endpoint_url, request.param, 2, local=server, http2=http2)
    ) as made:
        yield made


@pytest.fixture(scope="module")
def consumer(case: ServerCase) -> ConsumerDescription:
    return case.register()


def subscribe(case: ServerCase, consumer: ConsumerDescription, **position: Any) -> Subscription:
    start = IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, **position) if position else FROM_THE_START
    return case.run(case.fan_out.subscribe(consumer.arn, SHARD, start))


@pytest.mark.parametrize("fault", ["cut", "garbage", "wrong_crc"])
def test_a_broken_event_is_an_error_and_its_records_come_again(
    server: LocalKinesis, case: ServerCase, consumer: ConsumerDescription, fault: str
) -> None:
    """The subscription after it has no fault."""
    first = case.put(b"first")
    subscription = subscribe(case, consumer)
    assert case.events_until(subscription, 1)[-1].continuation == first
    server.plan_fan_out_fault(fault, stream=case.name)
    with pytest.raises(UnavailableError):
        case.rest_of(subscription)
    second = case.put(b"second")
    event = case.events_until(subscribe(case, consumer, sequence_number=first), 1)[-1]  # after heartbeats
    assert [record.sequence_number for record in event.records] == [second]


def test_an_open_subscription_falls_silent(
    server: LocalKinesis, case: ServerCase, consumer: ConsumerDescription
) -> None:
    """Neither records nor heartbeats arrive, and the connection stays open until the client closes it."""
    subscription = subscribe(case, consumer, sequence_number=case.put(b"x"))
    server.plan_fan_out_fault("silence", stream=case.name, shard=SHARD)
    case.put(b"y")

    async def wait() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(subscription), 0.3)
        await subscription.close()

    case.run(wait())


def test_a_subscription_ends_early_and_can_be_renewed(
    server: LocalKinesis, case: ServerCase, consumer: ConsumerDescription
) -> None:
    """Without an error."""
    subscription = subscribe(case, consumer, sequence_number=case.put(b"x"))
    server.plan_fan_out_fault("early_end", stream=case.name)
    assert not any(event.records for event in case.rest_of(subscription))  # but heartbeats
    subscribe(case, consumer)


def test_requests_are_refused_as_often_as_planned(
    server: LocalKinesis, case: ServerCase, consumer: ConsumerDescription
) -> None:
    """A fault of another shard stays planned."""
    server.plan_fan_out_fault("in_use", times=2, stream=case.name)
    server.plan_fan_out_fault("in_use", stream=case.name, shard="shardId-000000000001")
    for _ in range(2):
        with pytest.raises(InUseError):
            subscribe(case, consumer)
    subscribe(case, consumer)
    with pytest.raises(InUseError):
        case.run(case.fan_out.subscribe(consumer.arn, ShardId("shardId-000000000001"), FROM_THE_START))


def test_a_subscription_begins_too_early_and_without_an_initial_response(
    server: LocalKinesis, case: ServerCase, consumer: ConsumerDescription
) -> None:
    """Its first event has earlier records, and the records after the position follow."""
    numbers = [case.put(b"%d" % number) for number in range(12)]
    server.plan_fan_out_fault("out_of_order", stream=case.name)
    server.plan_fan_out_fault("no_initial_response", stream=case.name)
    events = case.events_until(subscribe(case, consumer, sequence_number=numbers[9]), 12)
    early, right = (event for event in events if event.records)
    assert [record.sequence_number for record in early.records] == numbers[:10]
    assert [record.sequence_number for record in right.records] == numbers[10:]


def test_an_unknown_fault_is_refused_with_a_suggestion(server: LocalKinesis) -> None:
    with pytest.raises(ConfigError, match="did you mean silence"):
        server.plan_fan_out_fault("silent")
    with pytest.raises(ConfigError, match="times=0"):
        server.plan_fan_out_fault("cut", times=0)
    with pytest.raises(ConfigError, match="did you mean shard"):
        server._send_control("fan-out", {"fault": "cut", "shards": "x"})
