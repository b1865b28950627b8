"""A worker by enhanced fan-out on the local server recovers from everything that can happen to a subscription."""

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from leasehold import Batch, Consumer
from leasehold.core.events import (
    ConsumerFound,
    Event,
    PageRead,
    Subscribed,
    SubscriptionEnded,
    SubscriptionLost,
)
from leasehold.local import LocalKinesis
from tests.contract.streams import eventually
from tests.servers import Server

DEADLINE_S = 120.0
APPLICATION = "billing"
STREAM = "orders"


@dataclass
class World:
    """A server, a worker that reads a stream of it by fan-out, and the numbers that it has handled."""

    client: Any
    local: LocalKinesis | None = None
    stream: str = STREAM
    events: list[Event] = field(default_factory=list)
    handled: list[int] = field(default_factory=list)
    by_shard: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    put_count: int = 0

    @property
    def kinesis(self) -> LocalKinesis:
        """The local server, which a test can change."""
        assert self.local
        return self.local

    def put(self, count: int = 20) -> None:
        """Put numbered records, spread over the shards."""
        entries = [
            {
                "Data": b"%d" % (self.put_count + at),
                "PartitionKey": "k",
                "ExplicitHashKey": str(at * 2**128 // count),
            }
            for at in range(count)
        ]
        assert self.client.put_records(StreamName=self.stream, Records=entries)["FailedRecordCount"] == 0
        self.put_count += count

    def put_and_wait(self, count: int = 20) -> None:
        """Put records, and wait until all records so far were handled."""
        self.put(count)
        eventually(
            lambda: set(self.handled) >= set(range(self.put_count)), "all records are handled", DEADLINE_S
        )

    def seen(self, kind: type[Event], shard: str | None = None) -> list[Any]:
        """The events of a kind so far, of a shard."""
        return [
            each for each in list(self.events) if isinstance(each, kind) and shard in {None, _shard(each)}
        ]

    def wait_for_subscriptions(self, count: int) -> None:
        """Wait until there were at least so many subscriptions in all."""
        eventually(lambda: len(self.seen(Subscribed)) >= count, f"{count} subscriptions", DEADLINE_S)

    def check(self) -> None:
        """Nothing was handled twice or in a wrong order, and nothing was polled."""
        assert sorted(self.handled) == list(range(self.put_count))
        for numbers in self.by_shard.values():
            assert numbers == sorted(numbers)
        assert all(page.time_ms is None for page in self.seen(PageRead))


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> Callable[[str, str], int]:
    """Counts the log lines that begin with one text and contain another."""
    caplog.set_level(logging.DEBUG, logger="leasehold")

    def count(begins: str, contains: str = "") -> int:
        lines = [record.getMessage() for record in list(caplog.records)]
        return sum(line.startswith(begins) and contains in line for line in lines)

    return count


def _shard(event: Event) -> str:
    return str(getattr(event, "shard_key", ""))


@contextmanager
def running_world(folder: Path, shards: int, *, http2: bool = False) -> Iterator[World]:
    """A worker on a server of its own."""
    with (
        LocalKinesis.in_thread(streams={STREAM: shards}) as kinesis,
        running_worker(World(kinesis.client(), kinesis), folder, kinesis.endpoint_url, http2=http2) as world,
    ):
        yield world


@contextmanager
def running_worker(world: World, folder: Path, endpoint_url: str, *, http2: bool = False) -> Iterator[World]:
    """A worker that runs until the block ends, and stops without an error."""
    consumer = Consumer(
        stream=world.stream,
        application=APPLICATION,
        region="us-east-1",
        kinesis_endpoint=endpoint_url,
        leases=f"sqlite:///{folder / 'leases.sqlite'}",
        initial_position="trim_horizon",
        retrieval="fan_out",
        http2=http2,
        observe=world.events.append,
        failover_after="1m",
        refresh_every="200ms",
    )

    @consumer.batch(max_wait=0)
    def handle(batch: Batch) -> None:
        numbers = [int(record.data) for record in batch]
        world.by_shard[batch.shard] += numbers
        world.handled.extend(numbers)

    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(consumer.serve())
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield world
    finally:
        consumer.stop()
        thread.join(DEADLINE_S)
    assert not failures
    assert not thread.is_alive()


@pytest.mark.slow
def test_broken_subscriptions_are_renewed_where_they_were(
    tmp_path: Path, log_lines: Callable[[str, str], int]
) -> None:
    """Each shard has another fault: nothing is lost or repeated, and an event and a log line say what happened."""
    faults = ("cut", "garbage", "wrong_crc", "early_end", "silence")
    shards = [f"shardId-{number:012}" for number in range(len(faults))]
    with running_world(tmp_path, shards=len(faults)) as world:
        world.put_and_wait()
        world.wait_for_subscriptions(len(faults))
        for shard, fault in zip(shards, faults, strict=True):
            world.kinesis.plan_fan_out_fault("in_use", shard=shard)
            world.kinesis.plan_fan_out_fault("out_of_order", shard=shard)
            world.kinesis.plan_fan_out_fault("no_initial_response", shard=shard)
            world.kinesis.plan_fan_out_fault(fault, shard=shard)
        world.put_and_wait()
        world.check()
        for shard, fault in zip(shards, faults, strict=True):
            assert len(world.seen(Subscribed, shard)) >= 2, fault
            if fault == "early_end":
                assert world.seen(SubscriptionEnded, shard)
                assert log_lines("subscription ended, will be renewed", f"shard={shard}")
            else:
                lost, *_ = world.seen(SubscriptionLost, shard)
                assert lost.reason, fault
                assert log_lines("subscription lost, will be renewed", f"shard={shard}"), fault
        assert log_lines("subscription lost", "no event for 20000 ms")
        assert log_lines("subscription lost", "wrong checksum")


def test_a_worker_outlives_idle_shards_reshards_and_the_deletion_of_its_consumer(
    tmp_path: Path, log_lines: Callable[[str, str], int]
) -> None:
    """An idle shard for 11 minutes, shards that end during a subscription, and a consumer that is deleted."""
    with running_world(tmp_path, shards=2) as world:
        world.put_and_wait()
        world.wait_for_subscriptions(2)
        for count in (4, 6):
            world.kinesis.advance(timedelta(minutes=5))
            world.wait_for_subscriptions(count)
        world.kinesis.advance(timedelta(minutes=1))
        world.put_and_wait()
        world.client.merge_shards(
            StreamName=STREAM,
            ShardToMerge="shardId-000000000000",
            AdjacentShardToMerge="shardId-000000000001",
        )
        world.put_and_wait()
        assert world.by_shard["shardId-000000000002"]
        (found,) = world.seen(ConsumerFound)
        assert found.consumer == APPLICATION
        world.client.deregister_stream_consumer(ConsumerARN=found.arn)
        world.put_and_wait()
        _, again = world.seen(ConsumerFound)
        assert again.arn != found.arn
        world.check()
        first, merged = "shard=shardId-000000000000", "shard=shardId-000000000002"
        assert log_lines("subscription ended, will be renewed", first) == 2
        assert log_lines("shard ended", first) == 1
        assert log_lines("subscription lost, will be renewed", merged) == 1
        assert log_lines("consumer found", again.arn) == 1


def test_many_shards_are_renewed_at_one_time(tmp_path: Path, log_lines: Callable[[str, str], int]) -> None:
    """All subscriptions of 200 shards end in the same moment, and each shard is read again. Over HTTP/2."""
    with running_world(tmp_path, shards=200, http2=True) as world:
        world.put_and_wait(400)
        world.wait_for_subscriptions(200)
        world.kinesis.advance(timedelta(minutes=5))
        world.put_and_wait(400)
        assert len(world.seen(SubscriptionEnded)) == 200
        world.check()
        assert log_lines("subscription ended, will be renewed", "") == 200


@pytest.mark.parametrize("server", ["ministack", "kinesis_local"])
def test_a_worker_reads_from_other_servers(
    server: str, request: pytest.FixtureRequest, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Independent servers: ministack, and kinesis-local, which sends no initial response and an event each second."""
    found: Server = request.getfixturevalue(server)
    client, stream = found.client("kinesis"), unique_name("fan-out")
    client.create_stream(StreamName=stream, ShardCount=2)
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    world = World(client, stream=stream)
    world.put()
    with running_worker(world, tmp_path, found.url):
        world.put_and_wait()
        world.put_and_wait()
        world.check()
