"""`leasehold put` with our own Kinesis server."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasehold.cli import connections
from leasehold.cli.command import leasehold
from leasehold.cli.put import BYTES_MAX, calls
from leasehold.core.record import PutEntry
from leasehold.local import LocalKinesis
from tests.integration.cli_process import start_cli


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_that_has_just_been_started_is_waited_for(tmp_path: Path) -> None:
    """As after `leasehold local &`. The command says what it waits for."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with start_cli("put", "orders", "x", "--kinesis-endpoint-url", url, folder=tmp_path) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"waiting up to 10 s for a server at {url}\n"
        with LocalKinesis.in_thread(streams={"orders": 1}, port=port):
            out, err = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()[0]) == (0, "1 record put into orders"), err


def test_without_a_server_the_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOCAL_SERVER_WAIT_S", 0.3)
    url = f"http://localhost:{free_port()}"
    result = CliRunner().invoke(leasehold, ["put", "orders", "x", "--kinesis-endpoint-url", url])
    assert result.exit_code == 1
    assert "whether it runs" in result.output
