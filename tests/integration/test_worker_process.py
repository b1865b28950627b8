"""Consumers in processes of their own, with the local server and leases in SQLite or DynamoDB."""

import asyncio
import base64
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasehold.adapters.sqlite_rows import SqliteRows
from leasehold.config.connection import ConnectionSettings
from leasehold.config.iam_policy import IamRole, PolicyScope, iam_policy
from leasehold.core.model import Lease
from leasehold.local import LocalKinesis
from leasehold.wiring import open_lease_table
from leasehold.worker.engine.engine_thread import SAME_REQUEST_S
from tests.integration.cli_process import environment, run_cli
from tests.proxy import run_proxy
from tests.servers import Server

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 90
# Short, so that a lease that is not renewed expires long before a test ends. Longer than the pauses of a busy machine.
FAILOVER = {"failover_after": "5s", "refresh_every": "500ms"}


@dataclass
class ProcessWorld:
    """A stream, a folder, and the processes that consume the stream."""

    kinesis: LocalKinesis
    stream: str
    folder: Path
    shards: int = 2
    connection: dict[str, Any] = field(default_factory=dict)
    processes: list["subprocess.Popen[str]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection = {"leases": f"sqlite:///{self.folder}/leases.sqlite"}
        self.client = self.kinesis.client()
        self.client.create_stream(StreamName=self.stream, ShardCount=self.shards)

    def put(self, *data: str, stream: str | None = None) -> None:
        """Put records. Their data is also their partition key."""
        for first in range(0, len(data), 500):
            entries = [{"Data": each.encode(), "PartitionKey": each} for each in data[first : first + 500]]
            response = self.client.put_records(StreamName=stream or self.stream, Records=entries)
            assert response["FailedRecordCount"] == 0

    def start(self, program: str, **options: Any) -> "subprocess.Popen[str]":
        """Run one of the programs with these settings."""
        is_named = any(name.startswith("streams") for name in options)
        named = {} if is_named else {"stream": self.stream}
        settings = {
            **named,
            "application": "billing",
            "kinesis_endpoint": self.kinesis.endpoint_url,
            **self.connection,
            "idle_poll_every": "200ms",
            **options,
        }
        return self.start_python(
            "-m", "tests.integration.worker_programs", program, json.dumps(settings), str(self.folder)
        )

    def start_python(self, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-X", "dev", *arguments],
            cwd=ROOT,
            env={**environment(self.folder), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def handled(self) -> list[str]:
        """Return the data of the handled records, in order."""
        file = self.folder / "handled"
        return [line.split(" ", 1)[1] for line in file.read_text().splitlines()] if file.exists() else []

    def has_handled_exactly(self, expected: set[str]) -> bool:
        """Return whether these records were handled, and no others."""
        return set(self.handled()) == expected

    def read_leases(self) -> tuple[Lease, ...]:
        """Return the current leases."""

        async def read() -> tuple[Lease, ...]:
            table = open_lease_table(ConnectionSettings(**self.connection), "billing")
            try:
                return (await table.list()).leases
            finally:
                await table.close()

        return asyncio.run(read())

    def has_report_of(self, worker: str) -> bool:
        """Return whether a worker has joined the fleet and reported its load. From then on it handles signals."""

        async def read() -> bool:
            rows = SqliteRows(self.folder / "leases.sqlite")
            try:
                return await rows.get(worker) is not None
            finally:
                await rows.close()

        return asyncio.run(read())

    def owners(self) -> set[str | None]:
        """Return the owners of all leases. None is the owner of a free lease."""
        return {lease.owner for lease in self.read_leases()}


@pytest.fixture
def world(
    request: pytest.FixtureRequest,
    local_kinesis: LocalKinesis,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> Iterator[ProcessWorld]:
    """A stream of two shards, or as many as the test's parameter says. All processes are killed in the end."""
    created = ProcessWorld(local_kinesis, unique_name("orders"), tmp_path, getattr(request, "param", 2))
    yield created
    for process in created.processes:
        process.kill()
        process.communicate()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"the condition does not hold after {TIMEOUT_S} s"
        time.sleep(0.05)


def next_millisecond(kinesis: LocalKinesis) -> int:
    """Wait for a later millisecond on the server's clock, and return it."""
    before_ms = kinesis.now_ms()
    wait_until(lambda: kinesis.now_ms() > before_ms)
    return kinesis.now_ms()


def wait_for_exit(process: "subprocess.Popen[str]", *, code: int = 0) -> str:
    """Wait for the end of a process, check its exit code, and return its error output."""
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == code, errors
    return errors


@pytest.mark.parametrize("leases", ["sqlite", "dynamodb"])
def test_the_example_of_the_documentation_consumes_a_stream(
    world: ProcessWorld, dynamodb_local: Server, unique_name: Callable[[str], str], leases: str
) -> None:
    """Every record is handled once, and SIGTERM ends the process with 0 and releases the leases."""
    program = (ROOT / "examples" / "ten_lines.py").read_text().replace('"orders"', repr(world.stream))
    file = world.folder / "ten_lines.py"
    file.write_text(program)
    world.put(*map(str, range(1000)))
    variables = {"LEASEHOLD_KINESIS_ENDPOINT": world.kinesis.endpoint_url, "PYTHONUNBUFFERED": "1"}
    if leases == "dynamodb":
        world.connection = {
            "dynamodb_endpoint": dynamodb_local.url,
            "lease_table": unique_name("billing"),
        }
    for name, value in world.connection.items():
        variables[f"LEASEHOLD_{name.upper()}"] = value
    process = world.start_python(str(file), **variables)
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(1000)]
    assert len({(shard, number) for shard, number, *_ in lines}) == 1000
    for shard in {line[0] for line in lines}:
        numbers = [int(line[1]) for line in lines if line[0] == shard]
        assert numbers == sorted(numbers)
    process.send_signal(signal.SIGTERM)
    wait_for_exit(process)
    assert world.owners() == {None}
    assert all(lease.checkpoint.is_record for lease in world.read_leases())


@pytest.mark.parametrize("world", [9], indirect=True)
def test_interim_responses_change_nothing(
    world: ProcessWorld, dynamodb_local: Server, unique_name: Callable[[str], str]
) -> None:
    """Before each response of Kinesis and DynamoDB, a proxy sends six interim ones. Every record is handled once, and
    every checkpoint is the last record of its own shard.
    """
    last: dict[str, str] = {}
    for number in range(450):
        put = world.client.put_record(StreamName=world.stream, Data=b"%d" % number, PartitionKey=str(number))
        last[put["ShardId"]] = put["SequenceNumber"]
    world.connection = {"dynamodb_endpoint": dynamodb_local.url, "lease_table": unique_name("billing")}
    with run_proxy(world.kinesis.endpoint_url) as kinesis, run_proxy(dynamodb_local.url) as dynamodb:
        for proxy in (kinesis, dynamodb):
            proxy.interim_responses = b"".join(
                b"HTTP/1.1 %d Wait\r\nLink: </a>\r\n\r\n" % status for status in (100, 102, 103) * 2
            )
        options = {"kinesis_endpoint": kinesis.url, "dynamodb_endpoint": dynamodb.url}
        process = world.start("handles_everything", **options, **FAILOVER)
        wait_until(lambda: len(world.handled()) >= 450)
        process.send_signal(signal.SIGTERM)
        wait_for_exit(process)
    assert sorted(world.handled(), key=int) == [str(number) for number in range(450)]
    checkpoints = {str(lease.shard_id): lease.checkpoint.sequence_number for lease in world.read_leases()}
    assert checkpoints == last
    assert len(last) == 9
    assert world.owners() == {None}


def test_members_and_viewers_make_only_calls_that_their_policies_allow(
    world: ProcessWorld, dynamodb_local: Server, unique_name: Callable[[str], str]
) -> None:
    """A new fleet with a leader, a split, a stop, and `leasehold explain`. Each allowed call is also made."""
    table = unique_name("billing")
    scope = PolicyScope(application=table, streams=(world.stream,))
    with run_proxy(world.kinesis.endpoint_url) as kinesis, run_proxy(dynamodb_local.url) as dynamodb:
        endpoints = {"kinesis_endpoint": kinesis.url, "dynamodb_endpoint": dynamodb.url}
        process = world.start(
            "handles_everything", **endpoints, leases="dynamodb", lease_table=table, mode="leader", **FAILOVER
        )
        world.put("1", "2", "3")
        wait_until(lambda: len(set(world.handled())) == 3)
        world.client.split_shard(
            StreamName=world.stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125)
        )
        world.put(*map(str, range(4, 20)))
        wait_until(lambda: len(set(world.handled())) == 19)
        wait_until(lambda: dynamodb.request_counts["TransactWriteItems"] > 0)
        process.send_signal(signal.SIGTERM)
        wait_for_exit(process)
        made = _actions(kinesis.request_counts, dynamodb.request_counts)
        kinesis.request_counts.clear()
        dynamodb.request_counts.clear()
        options = ["--kinesis-endpoint-url", kinesis.url, "--dynamodb-endpoint-url", dynamodb.url]
        run_cli(
            "explain",
            "--table",
            table,
            "--stream",
            world.stream,
            "--watch",
            "1",
            *options,
            folder=world.folder,
        )
        viewed = _actions(kinesis.request_counts, dynamodb.request_counts)
    allowed = {role: _allowed(iam_policy(role, scope)) for role in IamRole}
    assert made <= allowed[IamRole.WORKER] | allowed[IamRole.BOOTSTRAP]
    assert viewed <= allowed[IamRole.VIEWER]
    # Only tables with tags, backups or a new index need the first three, only a member of a large fleet asks the
    # index, and only a member of several streams describes them.
    rare = {"TagResource", "UpdateContinuousBackups", "UpdateTable", "Query", "DescribeStreamSummary"}
    unused = (allowed[IamRole.WORKER] | allowed[IamRole.BOOTSTRAP]) - made
    assert {each.partition(":")[2] for each in unused} <= rare


def _actions(kinesis: Counter[str], dynamodb: Counter[str]) -> set[str]:
    """The IAM actions of these requests. A transaction needs those of its writes."""
    parts = {"TransactWriteItems": ["PutItem", "UpdateItem"]}
    tables = {action for request in dynamodb for action in parts.get(request, [request])}
    return {f"kinesis:{request}" for request in kinesis} | {f"dynamodb:{action}" for action in tables}


def _allowed(policy: Mapping[str, Any]) -> set[str]:
    return {action for statement in policy["Statement"] for action in statement["Action"]}


def test_two_streams_in_one_fleet(
    world: ProcessWorld, dynamodb_local: Server, unique_name: Callable[[str], str]
) -> None:
    """Shards of the same names are split, merged and taken over from a killed member, and no record is mixed up."""
    world.connection = {"dynamodb_endpoint": dynamodb_local.url, "lease_table": unique_name("billing")}
    both = (world.stream, unique_name("returns"))
    world.client.create_stream(StreamName=both[1], ShardCount=2)
    options = {"streams": both, "mode": "auto", "checkpoint_every": "500ms", **FAILOVER}

    def put(numbers: range) -> None:
        for name in both:
            world.put(*(f"{name} {number}" for number in numbers), stream=name)

    def all_handled(up_to: int) -> bool:
        return set(world.handled()) == {f"{name} {name} {number}" for name in both for number in range(up_to)}

    put(range(200))
    killed, stopped = (world.start("handles_several_streams", **options) for _ in range(2))
    wait_until(lambda: all_handled(200) and len(world.owners() - {None}) == 2)
    first, second = "shardId-000000000000", "shardId-000000000001"
    world.client.split_shard(StreamName=both[0], ShardToSplit=first, NewStartingHashKey=str(2**125))
    world.client.merge_shards(StreamName=both[1], ShardToMerge=first, AdjacentShardToMerge=second)
    put(range(200, 400))
    killed.kill()
    wait_until(lambda: all_handled(400) and len(world.owners() - {None}) == 1)
    stopped.send_signal(signal.SIGTERM)
    wait_for_exit(stopped)
    assert world.owners() == {None}
    identifiers = {lease.stream for lease in world.read_leases()}
    assert {str(each).split(":")[1] for each in identifiers} == set(both)
    endpoints = (
        "--kinesis-endpoint-url",
        world.kinesis.endpoint_url,
        "--dynamodb-endpoint-url",
        dynamodb_local.url,
    )
    table = ("--table", world.connection["lease_table"], "--region", "us-east-1")
    found = json.loads(run_cli("lag", *table, *endpoints, "--json", folder=world.folder).out)["shards"]
    assert {each["stream"] for each in found} == identifiers
    assert [each["millis_behind"] for each in found] == [0] * 4


def test_streams_that_appear_and_disappear_are_followed_under_load(world: ProcessWorld) -> None:
    """Two members read a new stream, give one back that has lost its tag, and continue it without a repetition."""
    first, lost, new = (f"{world.stream}{suffix}" for suffix in ("", "-lost", "-new"))
    tag = {"read": "yes"}
    world.client.create_stream(StreamName=lost, ShardCount=2, Tags=tag)
    world.client.add_tags_to_stream(StreamName=first, Tags=tag)
    world.client.create_stream(StreamName=f"{world.stream}-other", ShardCount=1)
    options = {
        "streams_with_prefix": world.stream,
        "streams_with_tag": "read=yes",
        "mode": "auto",
        **FAILOVER,
    }
    puts: dict[str, int] = {}

    def put(*streams: str) -> None:
        for name in streams:
            begin = puts.get(name, 0)
            puts[name] = begin + 20
            world.put(*(f"{name} {number}" for number in range(begin, begin + 20)), stream=name)

    def all_handled(*streams: str) -> bool:
        handled = set(world.handled())
        return all(f"{name} {name} {n}" in handled for name in streams for n in range(puts[name]))

    def owners_of(stream: str) -> set[str | None]:
        return {lease.owner for lease in world.read_leases() if f":{stream}:" in lease.key}

    put(first, lost)
    members = [
        world.start("handles_several_streams", discover_streams_every="1s", **options) for _ in range(2)
    ]
    wait_until(lambda: all_handled(first, lost) and len(world.owners() - {None}) == 2)
    world.client.create_stream(StreamName=new, ShardCount=4, Tags=tag)
    put(new, first, lost)
    world.client.remove_tags_from_stream(StreamName=lost, TagKeys=["read"])
    put(new, first, lost)
    wait_until(lambda: owners_of(lost) == {None} and None not in owners_of(new) and len(owners_of(new)) == 2)
    put(new, first, lost)
    wait_until(lambda: all_handled(first, new))
    assert not all_handled(lost)
    world.client.add_tags_to_stream(StreamName=lost, Tags=tag)
    put(new, first, lost)
    wait_until(lambda: all_handled(first, lost, new))
    world.client.delete_stream(StreamName=first)
    wait_until(lambda: owners_of(first) == {None})
    for member in members:
        member.send_signal(signal.SIGTERM)
        wait_for_exit(member)
    assert len(world.handled()) == len(set(world.handled())) == sum(puts.values())


def test_a_worker_that_begins_at_a_time_reads_every_record_since_then_and_none_before(tmp_path: Path) -> None:
    """Also of shards that were split before and after that time, and across a restart."""
    with LocalKinesis.in_thread() as kinesis:
        world = ProcessWorld(kinesis, "orders", tmp_path)
        first, second = "shardId-000000000000", "shardId-000000000001"
        world.put(*(f"early {number}" for number in range(50)))
        world.client.split_shard(StreamName="orders", ShardToSplit=first, NewStartingHashKey=str(2**125))
        world.put(*(f"old {number}" for number in range(50)))
        since_ms = next_millisecond(kinesis)
        next_millisecond(kinesis)
        world.put(*(f"new {number}" for number in range(100)))
        world.client.split_shard(
            StreamName="orders", ShardToSplit=second, NewStartingHashKey=str(2**127 + 2**125)
        )
        world.put(*(f"new {number}" for number in range(100, 200)))
        at = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat()
        for number in range(2):
            member = world.start("handles_everything", initial_position=at, checkpoint_every=0, **FAILOVER)
            up_to = 200 * (number + 1)
            expected = {f"new {each}" for each in range(up_to)}
            wait_until(partial(world.has_handled_exactly, expected))
            member.send_signal(signal.SIGTERM)
            wait_for_exit(member)
            world.put(*(f"new {each}" for each in range(up_to, up_to + 200)))
    assert len(world.handled()) == 400


def test_one_poison_record_of_ten_thousand(world: ProcessWorld) -> None:
    """It is a dead letter with position and error. All others are handled once, and the shard continues."""
    data = [f"order {number}" for number in range(10_000)]
    data[6_789] = "poison"
    world.put(*data)
    letters = world.folder / "letters.jsonl"
    process = world.start("raises_on_poison", dead_letters=str(letters))
    wait_until(lambda: len(world.handled()) >= 9_999)
    world.put("after the poison")
    wait_until(lambda: "after the poison" in world.handled())
    process.send_signal(signal.SIGTERM)
    errors = wait_for_exit(process)
    handled = world.handled()
    assert sorted(handled) == sorted({*data, "after the poison"} - {"poison"})
    (letter,) = [json.loads(line) for line in letters.read_text().splitlines()]
    assert base64.b64decode(letter["data"]) == b"poison"
    assert (letter["error_type"], letter["error_message"]) == ("ValueError", "this one cannot be read")
    assert letter["attempts"] == 3
    assert (letter["stream"], letter["application"]) == (world.stream, "billing")
    shard, number = find_record(world, "poison")
    assert (letter["shard"], letter["sequence_number"]) == (shard, number)
    assert "this one cannot be read" not in errors
    assert "order 1" not in errors


def find_record(world: ProcessWorld, data: str) -> tuple[str, str]:
    """Return shard and sequence number of a record in the stream."""
    for shard in world.client.list_shards(StreamName=world.stream)["Shards"]:
        iterator = world.client.get_shard_iterator(
            StreamName=world.stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while True:
            page = world.client.get_records(ShardIterator=iterator)
            for record in page["Records"]:
                if record["Data"] == data.encode():
                    return shard["ShardId"], record["SequenceNumber"]
            if not page["Records"]:
                break
            iterator = page["NextShardIterator"]
    raise AssertionError(f"{data} is not in the stream")


@pytest.mark.parametrize("world", [1], indirect=True)
@pytest.mark.parametrize("program", ["sleeps_on_slow", "async_blocks_its_loop"])
def test_a_handler_that_blocks_for_long_keeps_its_leases(world: ProcessWorld, program: str) -> None:
    """It sleeps for four failover times while a second worker waits, and no lease changes its owner."""
    world.put("slow 20")
    first = world.start(program, worker_id="first", **FAILOVER)
    wait_until((world.folder / "began").exists)
    second = world.start("handles_everything", worker_id="second", **FAILOVER)
    wait_until(lambda: world.has_report_of("second"))
    wait_until(lambda: world.handled() == ["slow 20"])
    assert world.owners() == {"first"}
    for process in (second, first):
        process.send_signal(signal.SIGTERM)
        assert "lease lost" not in wait_for_exit(process)
    assert world.handled() == ["slow 20"]


def test_sigterm_waits_for_the_running_handler_and_stores_its_batch(world: ProcessWorld) -> None:
    """The running batch is finished and stored, so another worker does not get it again."""
    world.put("slow 3")
    process = world.start("sleeps_on_slow")
    wait_until((world.folder / "began").exists)
    process.send_signal(signal.SIGTERM)
    wait_for_exit(process)
    assert world.handled() == ["slow 3"]
    assert world.owners() == {None}
    world.put("next")
    after = world.start("handles_everything")
    wait_until(lambda: "next" in world.handled())
    after.send_signal(signal.SIGINT)
    wait_for_exit(after)
    assert world.handled() == ["slow 3", "next"]


def test_sigterm_ends_a_process_whose_handler_never_returns(world: ProcessWorld) -> None:
    """Within the grace period, with 0 and with its leases released. The record is delivered again."""
    world.put("slow 10000")
    process = world.start("sleeps_on_slow", grace="3s")
    wait_until((world.folder / "began").exists)
    process.send_signal(signal.SIGTERM)
    errors = wait_for_exit(process)
    assert "handlers still run" in errors
    assert world.handled() == []
    assert world.owners() == {None}


def test_the_second_sigterm_ends_the_process_at_once(world: ProcessWorld) -> None:
    """It neither drains nor releases: the signal itself ends the process."""
    world.put("slow 10000")
    process = world.start("sleeps_on_slow", worker_id="hasty", grace="10m")
    wait_until((world.folder / "began").exists)
    wait_until(lambda: world.owners() == {"hasty"})
    process.send_signal(signal.SIGTERM)
    # The other shard has no running batch, so it is released first. That shows that the first signal was handled.
    wait_until(lambda: world.owners() == {"hasty", None})
    time.sleep(2 * SAME_REQUEST_S)  # signals that follow each other at once count as one
    process.send_signal(signal.SIGTERM)
    wait_for_exit(process, code=-signal.SIGTERM)
    assert world.owners() == {"hasty", None}


def test_a_worker_that_stops_at_poison_exits_with_an_error(world: ProcessWorld) -> None:
    """The exit code is not 0. All leases are released, and no record is skipped."""
    world.put("before", "poison")
    process = world.start("raises_on_poison", on_poison="stop_worker")
    errors = wait_for_exit(process, code=1)
    assert "HandlerError" in errors
    assert world.owners() == {None}
    assert "poison" not in world.handled()


@pytest.mark.parametrize(
    "program",
    ["checkpoints_in_two_phases", "uses_a_processor", "serves_in_its_own_loop", "iterates_over_shards"],
)
def test_every_kind_of_handler_consumes_everything_once_across_a_restart(
    world: ProcessWorld, program: str
) -> None:
    """After SIGTERM and a restart, each record was handled once, in order within its shard."""
    data = [str(number) for number in range(2_000)]
    world.put(*data[:1_000])
    first = world.start(program)
    wait_until(lambda: len(world.handled()) >= 500)
    first.send_signal(signal.SIGTERM)
    wait_for_exit(first)
    world.put(*data[1_000:])
    second = world.start(program)
    wait_until(lambda: len(world.handled()) >= 2_000)
    second.send_signal(signal.SIGTERM)
    wait_for_exit(second)
    assert sorted(world.handled(), key=int) == data
    lines = (world.folder / "handled").read_text().splitlines()
    for shard in {line.split()[0] for line in lines}:
        of_shard = [int(line.split()[1]) for line in lines if line.split()[0] == shard]
        assert of_shard == sorted(of_shard)
    assert world.owners() == {None}


def test_a_recreated_stream_is_named_and_can_be_started_over(world: ProcessWorld) -> None:
    """The process ends with an error that names the remedy. With the remedy it reads the new stream from its start."""
    world.put(*(f"old {number}" for number in range(20)))
    first = world.start("handles_everything")
    wait_until(lambda: len(world.handled()) == 20)
    first.send_signal(signal.SIGTERM)
    wait_for_exit(first)
    world.client.delete_stream(StreamName=world.stream)
    world.client.get_waiter("stream_not_exists").wait(StreamName=world.stream, WaiterConfig={"Delay": 1})
    world.client.create_stream(StreamName=world.stream, ShardCount=3)
    world.client.get_waiter("stream_exists").wait(StreamName=world.stream, WaiterConfig={"Delay": 1})
    new = [f"new {number}" for number in range(30)]
    world.put(*new)

    errors = wait_for_exit(world.start("handles_everything"), code=1)
    assert f"stream {world.stream} was deleted and created again at 20" in errors
    assert "on_recreated_stream='start_over'" in errors
    assert len(world.handled()) == 20

    again = world.start("handles_everything", on_recreated_stream="start_over", initial_position="latest")
    wait_until(lambda: len(world.handled()) == 50)
    assert sorted(world.handled()[20:]) == sorted(new)
    again.send_signal(signal.SIGTERM)
    wait_for_exit(again)
