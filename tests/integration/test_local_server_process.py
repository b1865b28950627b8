"""`leasehold local` as a process: start, stop by signals, and the state file."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from leasehold.local import LocalKinesis
from tests.integration.local_server_clients import MIDDLE, client_of, read_to_end, records_of

DEADLINE_S = 60.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.02)


def leasehold_local(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "leasehold.cli", "local", "--port", "0", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def start_server() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts servers, and kill them at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        started.append(leasehold_local(*arguments))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_server_cleanly(
    start_server: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    """Exit code 0 and no error output, also with a connected client."""
    running = start_server("--json")
    assert running.stdout
    server = LocalKinesis(json.loads(running.stdout.readline())["endpoint_url"])
    client_of(server).list_streams()
    running.send_signal(number)
    _, errors = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, errors) == (0, "")


def test_the_printed_variables_configure_boto3(start_server: Callable[..., subprocess.Popen[str]]) -> None:
    """The output fits on a screen and contains variables with which boto3 finds the server."""
    running = start_server("--stream", "orders:3")
    assert running.stdout
    output: list[str] = []
    while "list-streams" not in "".join(output):
        output.append(running.stdout.readline())
    assert len(output) <= 24
    variables = dict(re.findall(r"(AWS_\w+)=(\S+)", "".join(output)))
    program = "import boto3; print(boto3.client('kinesis').list_streams()['StreamNames'])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout.strip() == "['orders']"


def test_a_port_in_use_is_reported_in_one_sentence(
    start_server: Callable[..., subprocess.Popen[str]],
) -> None:
    """The error names the address and the remedy, without a traceback."""
    with LocalKinesis.in_thread() as other:
        port = other.endpoint_url.rpartition(":")[2]
        second = start_server("--port", port)
        _, errors = second.communicate(timeout=DEADLINE_S)
    assert second.returncode == 1
    assert f"127.0.0.1:{port} cannot be used: Address already in use" in errors
    assert "Traceback" not in errors


def test_the_aws_command_line_works(tmp_path: Path) -> None:
    """Create, put and get with the `aws` command."""
    with LocalKinesis.in_process() as server:

        def aws(*arguments: str) -> Any:
            command = [
                str(Path(sys.executable).parent / "aws"),
                "--endpoint-url",
                server.endpoint_url,
                "kinesis",
                *arguments,
            ]
            environment = os.environ | {
                "AWS_ACCESS_KEY_ID": "local",
                "AWS_SECRET_ACCESS_KEY": "local",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_CONFIG_FILE": str(tmp_path / "none"),
            }
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=True
            )
            return json.loads(done.stdout) if done.stdout else None

        aws("create-stream", "--stream-name", "orders", "--shard-count", "1")
        put = aws("put-record", "--stream-name", "orders", "--partition-key", "k", "--data", "hello")
        position = [
            "--stream-name",
            "orders",
            "--shard-id",
            put["ShardId"],
            "--shard-iterator-type",
            "TRIM_HORIZON",
        ]
        iterator = aws("get-shard-iterator", *position)["ShardIterator"]
        (record,) = aws("get-records", "--shard-iterator", iterator)["Records"]
    assert (record["Data"], record["SequenceNumber"]) == ("aGVsbG8=", put["SequenceNumber"])


def read_all(client: Any) -> list[Any]:
    shards = client.list_shards(StreamName="orders")["Shards"]
    return [shards, [read_to_end(client, "orders", shard["ShardId"]) for shard in shards]]


def test_a_state_file_restores_streams_after_a_restart(tmp_path: Path) -> None:
    """Streams, parents and children, records and consumers are restored. Sequence numbers continue to increase."""
    state = ("--state", str(tmp_path / "state"))
    with LocalKinesis.in_process(*state, "--stream", "orders:2") as server:
        client = client_of(server)
        for number in range(20):
            client.put_record(StreamName="orders", Data=os.urandom(100), PartitionKey=f"ключ-{number}")
        client.split_shard(
            StreamName="orders", ShardToSplit="shardId-000000000000", NewStartingHashKey="1000"
        )
        arn = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
        consumer = client.register_stream_consumer(StreamARN=arn, ConsumerName="reader")["Consumer"]
        before = read_all(client)
        last = client.put_record(StreamName="orders", Data=b"last", PartitionKey="k", ExplicitHashKey=MIDDLE)
    with LocalKinesis.in_process(*state, "--stream", "orders:2") as server:
        client = client_of(server)
        after = client.put_record(StreamName="orders", Data=b"next", PartitionKey="k", ExplicitHashKey=MIDDLE)
        assert after["ShardId"] == last["ShardId"]
        assert int(after["SequenceNumber"]) > int(last["SequenceNumber"])
        found = records_of(client, "orders", last["ShardId"])
        assert [record["Data"] for record in found[-2:]] == [b"last", b"next"]
        assert client.list_stream_consumers(StreamARN=arn)["Consumers"] == [consumer]
        shards, records = read_all(client)
        assert shards == before[0]
        assert records[0] == before[1][0]


def test_a_state_file_is_written_while_the_server_runs(tmp_path: Path) -> None:
    """After a kill, at most the last seconds are lost."""
    path = tmp_path / "state"
    running = leasehold_local("--json", "--state", str(path), "--stream", "orders:1")
    try:
        assert running.stdout
        client = client_of(LocalKinesis(json.loads(running.stdout.readline())["endpoint_url"]))
        size = path.stat().st_size
        client.put_record(StreamName="orders", Data=bytes(1000), PartitionKey="k")
        wait_until(lambda: path.stat().st_size > size + 1000, "the record is in the file")
    finally:
        running.kill()
        running.communicate()
    with LocalKinesis.in_process("--state", str(path)) as server:
        assert [record["Data"] for record in records_of(client_of(server), "orders")] == [bytes(1000)]


def test_no_output_contains_payloads_or_keys(start_server: Callable[..., subprocess.Popen[str]]) -> None:
    """Neither payload nor partition key is printed, also when the request fails."""
    running = start_server("--json", "--stream", "orders:1")
    assert running.stdout
    client = client_of(LocalKinesis(json.loads(running.stdout.readline())["endpoint_url"]))
    client.put_record(StreamName="orders", Data=b"secret-data", PartitionKey="secret-key")
    with pytest.raises(client.exceptions.ClientError):
        client.put_record(StreamName="orders", Data=b"secret-data" * 200_000, PartitionKey="secret-key")
    with pytest.raises(client.exceptions.ClientError):
        client.put_record(StreamName="orders", Data=b"x", PartitionKey="secret-key" * 50)
    running.send_signal(signal.SIGTERM)
    output, errors = running.communicate(timeout=DEADLINE_S)
    assert "secret" not in output + errors


def test_the_pytest_fixture_needs_no_import(tmp_path: Path) -> None:
    """`local_kinesis` works in every process of a parallel run, each on its own port."""
    (tmp_path / "test_program.py").write_text(
        textwrap.dedent(
            """
            import pytest

            @pytest.mark.parametrize("turn", range(4))
            def test_program(local_kinesis, turn, request):
                client = local_kinesis.client()
                name = f"{request.node.name[:-3]}-{turn}"
                client.create_stream(StreamName=name, ShardCount=2)
                assert name in client.list_streams()["StreamNames"]
            """
        )
    )
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("host", "status"), [("evil.example", 403), ("127.0.0.1:1", 404), ("localhost", 404)]
)
def test_other_host_names_are_refused(host: str, status: int) -> None:
    """A web page whose name resolves to this machine can neither read nor change anything."""
    with LocalKinesis.in_thread() as server:
        address = urlsplit(server.endpoint_url)
        connection = HTTPConnection(str(address.hostname), address.port)
        connection.request("POST", "/_leasehold/nothing", body=b"{}", headers={"Host": host})
        assert connection.getresponse().status == status
        connection.close()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("--account", "abc"), "abc"), (("--stream", "a b/..:1"), "a b"), (("--region", "US EAST"), "US EAST")],
)
def test_names_that_aws_would_refuse_are_refused(
    start_server: Callable[..., subprocess.Popen[str]], arguments: tuple[str, ...], named: str
) -> None:
    """The command refuses names that its server would not accept, and says what it expects."""
    started = start_server(*arguments)
    _, message = started.communicate(timeout=DEADLINE_S)
    assert started.returncode != 0
    assert named in message
    assert "Traceback" not in message
