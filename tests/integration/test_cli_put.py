"""`leasehold put` with our own Kinesis server."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasehold.cli.command import leasehold
from leasehold.cli.put import BYTES_MAX, calls
from leasehold.core.record import PutEntry
from leasehold.local import LocalKinesis


@pytest.fixture
def put(local_kinesis: LocalKinesis) -> Callable[..., Result]:
    """Run the command against the server. The endpoint comes from the environment."""

    def run(*arguments: str, lines: bytes | None = None) -> Result:
        environment = {"LEASEHOLD_KINESIS_ENDPOINT": local_kinesis.endpoint_url}
        return CliRunner().invoke(leasehold, ["put", *arguments], input=lines, env=environment)

    return run


def _read(client: Any, stream: str) -> list[tuple[bytes, str]]:
    iterator = client.get_shard_iterator(
        StreamName=stream, ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    records = client.get_records(ShardIterator=iterator)["Records"]
    return [(each["Data"], each["PartitionKey"]) for each in records]


def test_arguments_and_lines_become_records(
    put: Callable[..., Result], local_kinesis: LocalKinesis, unique_name: Callable[[str], str]
) -> None:
    """In their order, without line breaks. Empty lines are left out."""
    stream, client = unique_name("orders"), local_kinesis.client()
    client.create_stream(StreamName=stream, ShardCount=1)
    result = put(stream, "one", "two", "--partition-key", "k")
    assert result.output == f"2 records put into {stream}\n  shardId-000000000000: 2\n"
    assert put(stream, lines=b"three\r\n\nfour").exit_code == 0
    records = _read(client, stream)
    assert [data for data, _ in records] == [b"one", b"two", b"three", b"four"]
    keys = [key for _, key in records]
    assert keys[:2] == ["k", "k"]
    assert len(set(keys)) == 3


def test_a_missing_stream_is_reported_in_one_sentence(put: Callable[..., Result]) -> None:
    result = put("nosuch", "x")
    assert result.exit_code == 1
    assert result.output.startswith("Error: PutRecords into nosuch: ResourceNotFoundException")


def test_calls_stay_within_the_limits_of_kinesis() -> None:
    """500 records, and 5 MiB."""
    assert [len(each) for each in calls([PutEntry(b"x", "k")] * 1_001)] == [500, 500, 1]
    large = PutEntry(b"x" * (BYTES_MAX // 5), "k")
    assert [len(each) for each in calls([large] * 6)] == [4, 2]
