"""Fixtures of the contract tests: streams and consumers, and tables on each kind of store."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.contract.lease_stores import ALL, SERVERS, TableLocation, new_location
from tests.contract.streams import KinesisUnderTest, MakeStream, Stream, connect
from tests.contract.subscriptions import Consumer, MakeConsumer, register


@pytest.fixture(params=["local_kinesis", "kinesis_local"])
def kinesis(request: pytest.FixtureRequest) -> KinesisUnderTest:
    """A Kinesis server to poll from: ours, and kinesis-local."""
    return connect(request, request.param)


@pytest.fixture
def make_stream(kinesis: KinesisUnderTest, unique_name: Callable[[str], str]) -> Iterator[MakeStream]:
    made: list[Stream] = []

    def make(shards: int = 1, **request: Any) -> Stream:
        name = unique_name("contract")
        count = {} if "StreamModeDetails" in request else {"ShardCount": shards}
        kinesis.client.create_stream(StreamName=name, **count, **request)
        stream = Stream(kinesis, name)
        stream.wait_until_active()
        made.append(stream)
        return Stream(kinesis, name, stream.summary()["StreamARN"])

    yield make
    for stream in made:
        with suppress(ClientError):  # some tests delete their stream
            kinesis.client.delete_stream(StreamName=stream.name, EnforceConsumerDeletion=True)


@pytest.fixture
def stream(make_stream: MakeStream) -> Stream:
    """A stream of one shard."""
    return make_stream()


@pytest.fixture
def shard_id(stream: Stream) -> str:
    """The only shard of `stream`."""
    (shard,) = stream.shards()
    return str(shard["ShardId"])


@pytest.fixture
def make_consumer() -> Iterator[MakeConsumer]:
    """Registers fan-out consumers."""
    made: list[Consumer] = []

    def make(stream: Stream, name: str = "reader") -> Consumer:
        made.append(register(stream, name))
        return made[-1]

    yield make
    for consumer in made:
        for subscription in consumer.open_subscriptions:
            subscription.disconnect()


@pytest.fixture(params=ALL)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> TableLocation:
    """A new table on each kind of store."""
    return new_location(request, request.param, tmp_path)


@pytest.fixture(params=SERVERS)
def on_server(request: pytest.FixtureRequest, tmp_path: Path) -> TableLocation:
    """A new table on each DynamoDB server."""
    return new_location(request, request.param, tmp_path)
