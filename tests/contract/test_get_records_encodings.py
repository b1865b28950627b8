"""A page is the same in JSON and in CBOR, on every server that speaks CBOR, and is read in JSON from the others."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from leasehold.adapters.aws.clients import AwsAccess, kinesis_client
from leasehold.adapters.aws.kinesis_stream import KinesisStream
from leasehold.adapters.native_decoder import native_decoder
from leasehold.config.connection import KinesisProtocol
from leasehold.core.model import ShardId
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.errors import ServiceError
from leasehold.local import LocalKinesis
from leasehold.ports import Page
from tests.contract.streams import eventually
from tests.servers import aws_client

SHARD = ShardId("shardId-000000000000")
SENT = [b"", bytes(range(256)), "ä".encode(), b"x" * 20_000]

pytestmark = pytest.mark.skipif(native_decoder() is None, reason="leasehold-native is not built")


@pytest.fixture(params=["local_kinesis", "kinesis_local", "ministack"])
def server(request: pytest.FixtureRequest) -> str:
    """The URL of each server in turn. ministack does not understand CBOR."""
    fixture = request.getfixturevalue(request.param)
    return fixture.endpoint_url if isinstance(fixture, LocalKinesis) else str(fixture.url)


def read(url: str, stream: str, protocol: KinesisProtocol) -> Page:
    async def get_records() -> Page:
        client = kinesis_client(AwsAccess(region="us-east-1", endpoint_url=url))
        kinesis = KinesisStream(client, stream, protocol=protocol)
        try:
            iterator = await kinesis.get_iterator(SHARD, IteratorStart(IteratorKind.TRIM_HORIZON))
            return await kinesis.get_records(iterator, limit=100)
        finally:
            await kinesis.close()

    return asyncio.run(get_records())


def test_both_encodings_have_the_same_records(
    server: str, request: pytest.FixtureRequest, unique_name: Callable[[str], str]
) -> None:
    """Data, keys, numbers and the arrival to the millisecond, in a small page (lists) and in a large one (Arrow)."""
    client: Any = aws_client("kinesis", server)
    name = unique_name("encodings")
    client.create_stream(StreamName=name, ShardCount=1)

    def is_active() -> bool:
        summary = client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
        return bool(summary["StreamStatus"] == "ACTIVE")

    eventually(is_active, f"{name} becomes ACTIVE")
    for count in (3, len(SENT)):
        for number, data in enumerate(SENT[:count]):
            client.put_record(StreamName=name, Data=data, PartitionKey=f"schlüssel-{number}")
        in_json = list(read(server, name, KinesisProtocol.JSON).records)
        assert [record.data for record in in_json][-count:] == SENT[:count]
        assert all(record.arrival_ms for record in in_json)
        assert list(read(server, name, KinesisProtocol.AUTO).records) == in_json
        if "ministack" in request.node.name:
            with pytest.raises(ServiceError):
                read(server, name, KinesisProtocol.CBOR)
        else:
            assert list(read(server, name, KinesisProtocol.CBOR).records) == in_json
    client.delete_stream(StreamName=name)
