"""Consumers in processes of their own, against the local server and leases in SQLite or DynamoDB."""

import asyncio
import base64
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from leasehold.config.connection import ConnectionSettings
from leasehold.core.model import Lease
from leasehold.local import LocalKinesis
from leasehold.wiring import open_lease_table
from tests.integration.cli_process import environment, run_cli
from tests.servers import Server

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90
# Short, so that a lease that is not renewed would be gone well before a test ends.
FAILOVER = {"failover_after": "2s", "refresh_every": "500ms"}


@dataclass
class Stage:
    """A stream, a folder, and the processes that consume there."""

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
        """Put records, spread over the shards by what they hold."""
        for first in range(0, len(data), 500):
            entries = [{"Data": each.encode(), "PartitionKey": each} for each in data[first : first + 500]]
            answer = self.client.put_records(StreamName=stream or self.stream, Records=entries)
            assert answer["FailedRecordCount"] == 0

    def start(self, program: str, **options: Any) -> "subprocess.Popen[str]":
        """Run one of the programs with these settings."""
        named = {} if "streams" in options else {"stream": self.stream}
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
        """The data of what was handled, in the order in which it was."""
        file = self.folder / "handled"
        return [line.split(" ", 1)[1] for line in file.read_text().splitlines()] if file.exists() else []

    def leases_now(self) -> tuple[Lease, ...]:
        """The leases as they are in the table."""

        async def look() -> tuple[Lease, ...]:
            table = open_lease_table(ConnectionSettings(**self.connection), "billing")
            try:
                return (await table.list()).leases
            finally:
                await table.close()

        return asyncio.run(look())

    def owners(self) -> set[str | None]:
        """Who owns the leases; None: nobody."""
        return {lease.owner for lease in self.leases_now()}


@pytest.fixture
def stage(
    request: pytest.FixtureRequest,
    local_kinesis: LocalKinesis,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> Iterator[Stage]:
    """A stream of two shards, or as many as a test asks for, and no process left behind."""
    made = Stage(local_kinesis, unique_name("orders"), tmp_path, getattr(request, "param", 2))
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def ended(process: "subprocess.Popen[str]", *, code: int = 0) -> str:
    """Wait for the end of a process, whose exit code must be this; returns what it said."""
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, said
    return said


@pytest.mark.parametrize("leases", ["sqlite", "dynamodb"])
def test_the_ten_lines_consume_a_stream(
    stage: Stage, dynamodb_local: Server, unique_name: Callable[[str], str], leases: str
) -> None:
    """The example of the documentation, as it is: every record once, and SIGTERM ends it with 0, leases released."""
    program = (ROOT / "examples" / "ten_lines.py").read_text().replace('"orders"', repr(stage.stream))
    file = stage.folder / "ten_lines.py"
    file.write_text(program)
    stage.put(*map(str, range(1000)))
    variables = {"LEASEHOLD_KINESIS_ENDPOINT": stage.kinesis.endpoint_url, "PYTHONUNBUFFERED": "1"}
    if leases == "dynamodb":
        stage.connection = {
            "dynamodb_endpoint": dynamodb_local.url,
            "lease_table": unique_name("billing"),
        }
    for name, value in stage.connection.items():
        variables[f"LEASEHOLD_{name.upper()}"] = value
    process = stage.start_python(str(file), **variables)
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(1000)]
    assert len({(shard, number) for shard, number, *_ in lines}) == 1000
    for shard in {line[0] for line in lines}:
        numbers = [int(line[1]) for line in lines if line[0] == shard]
        assert numbers == sorted(numbers)
    process.send_signal(signal.SIGTERM)
    ended(process)
    assert stage.owners() == {None}
    assert all(lease.checkpoint.is_record for lease in stage.leases_now())


def test_two_streams_in_one_fleet(
    stage: Stage, dynamodb_local: Server, unique_name: Callable[[str], str]
) -> None:
    """Shards of the same names, split, merged and taken over from a member that was killed: no record is mixed up."""
    stage.connection = {"dynamodb_endpoint": dynamodb_local.url, "lease_table": unique_name("billing")}
    both = (stage.stream, unique_name("returns"))
    stage.client.create_stream(StreamName=both[1], ShardCount=2)
    options = {"streams": both, "mode": "auto", "checkpoint_every": "500ms", **FAILOVER}

    def put(numbers: range) -> None:
        for name in both:
            stage.put(*(f"{name} {number}" for number in numbers), stream=name)

    def all_handled(up_to: int) -> bool:
        return set(stage.handled()) == {f"{name} {name} {number}" for name in both for number in range(up_to)}

    put(range(200))
    killed, stopped = (stage.start("notes_streams", **options) for _ in range(2))
    until(lambda: all_handled(200) and len(stage.owners() - {None}) == 2)
    first, second = "shardId-000000000000", "shardId-000000000001"
    stage.client.split_shard(StreamName=both[0], ShardToSplit=first, NewStartingHashKey=str(2**125))
    stage.client.merge_shards(StreamName=both[1], ShardToMerge=first, AdjacentShardToMerge=second)
    put(range(200, 400))
    killed.kill()
    until(lambda: all_handled(400))
    stopped.send_signal(signal.SIGTERM)
    ended(stopped)
    assert stage.owners() == {None}
    identifiers = {lease.stream for lease in stage.leases_now()}
    assert {str(each).split(":")[1] for each in identifiers} == set(both)
    endpoints = (
        "--kinesis-endpoint-url",
        stage.kinesis.endpoint_url,
        "--dynamodb-endpoint-url",
        dynamodb_local.url,
    )
    table = ("--table", stage.connection["lease_table"], "--region", "us-east-1")
    found = json.loads(run_cli("lag", *table, *endpoints, "--json", folder=stage.folder).out)["shards"]
    assert {each["stream"] for each in found} == identifiers
    assert [each["millis_behind"] for each in found] == [0] * 4


def test_one_poison_record_of_ten_thousand(stage: Stage) -> None:
    """It is in the dead letters with place and error; all others are handled once; the shard goes on."""
    data = [f"order {number}" for number in range(10_000)]
    data[6_789] = "poison"
    stage.put(*data)
    letters = stage.folder / "letters.jsonl"
    process = stage.start("raises_on_poison", dead_letters=str(letters))
    until(lambda: len(stage.handled()) >= 9_999)
    stage.put("after the poison")
    until(lambda: "after the poison" in stage.handled())
    process.send_signal(signal.SIGTERM)
    said = ended(process)
    handled = stage.handled()
    assert sorted(handled) == sorted({*data, "after the poison"} - {"poison"})
    (letter,) = [json.loads(line) for line in letters.read_text().splitlines()]
    assert base64.b64decode(letter["data"]) == b"poison"
    assert (letter["error_type"], letter["error_message"]) == ("ValueError", "this one cannot be read")
    assert letter["attempts"] == 3
    assert (letter["stream"], letter["application"]) == (stage.stream, "billing")
    shard, number = place_of(stage, "poison")
    assert (letter["shard"], letter["sequence_number"]) == (shard, number)
    assert "this one cannot be read" not in said
    assert "order 1" not in said


def place_of(stage: Stage, data: str) -> tuple[str, str]:
    """Shard and sequence number of a record, as the stream has it."""
    for shard in stage.client.list_shards(StreamName=stage.stream)["Shards"]:
        iterator = stage.client.get_shard_iterator(
            StreamName=stage.stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while True:
            page = stage.client.get_records(ShardIterator=iterator)
            for record in page["Records"]:
                if record["Data"] == data.encode():
                    return shard["ShardId"], record["SequenceNumber"]
            if not page["Records"]:
                break
            iterator = page["NextShardIterator"]
    raise AssertionError(f"{data} is not in the stream")


@pytest.mark.parametrize("stage", [1], indirect=True)
@pytest.mark.parametrize("program", ["sleeps_on_slow", "async_blocks_its_loop"])
def test_a_handler_that_blocks_for_long_keeps_its_leases(stage: Stage, program: str) -> None:
    """Six failover times in `time.sleep`, with a second worker waiting for its chance: nothing changes hands."""
    stage.put("slow 12")
    first = stage.start(program, worker_id="first", **FAILOVER)
    until((stage.folder / "began").exists)
    second = stage.start("notes", worker_id="second", **FAILOVER)
    until(lambda: stage.handled() == ["slow 12"])
    assert stage.owners() == {"first"}
    for process in (second, first):
        process.send_signal(signal.SIGTERM)
        assert "lease lost" not in ended(process)
    assert stage.handled() == ["slow 12"]


def test_sigterm_waits_for_the_handler_and_stores_what_it_did(stage: Stage) -> None:
    """The record in hand is finished and stored: another worker does not get it again."""
    stage.put("slow 3")
    process = stage.start("sleeps_on_slow")
    until((stage.folder / "began").exists)
    process.send_signal(signal.SIGTERM)
    ended(process)
    assert stage.handled() == ["slow 3"]
    assert stage.owners() == {None}
    stage.put("next")
    after = stage.start("notes")
    until(lambda: "next" in stage.handled())
    after.send_signal(signal.SIGINT)
    ended(after)
    assert stage.handled() == ["slow 3", "next"]


def test_sigterm_ends_a_process_whose_handler_never_returns(stage: Stage) -> None:
    """Within the grace period, with 0, and with its leases released; the record comes again."""
    stage.put("slow 10000")
    process = stage.start("sleeps_on_slow", grace="3s")
    until((stage.folder / "began").exists)
    process.send_signal(signal.SIGTERM)
    said = ended(process)
    assert "handlers still run" in said
    assert stage.handled() == []
    assert stage.owners() == {None}


def test_the_second_sigterm_ends_it_at_once(stage: Stage) -> None:
    """No drain, no release: the process is gone, by the signal itself."""
    stage.put("slow 10000")
    process = stage.start("sleeps_on_slow", worker_id="hasty", grace="10m")
    until((stage.folder / "began").exists)
    process.send_signal(signal.SIGTERM)
    # The other shard has nothing in hand, so it is released first; that shows that the first signal was heard.
    until(lambda: stage.owners() == {"hasty", None})
    process.send_signal(signal.SIGTERM)
    ended(process, code=-signal.SIGTERM)
    assert stage.owners() == {"hasty", None}


def test_a_worker_that_must_stop_at_poison_exits_with_an_error(stage: Stage) -> None:
    """Not 0, so that whoever runs it notices; everything is released, nothing is skipped."""
    stage.put("before", "poison")
    process = stage.start("raises_on_poison", on_poison="stop_worker")
    said = ended(process, code=1)
    assert "HandlerError" in said
    assert stage.owners() == {None}
    assert "poison" not in stage.handled()


@pytest.mark.parametrize(
    "program", ["stores_by_hand", "is_a_processor", "serves_in_its_own_loop", "iterates_over_shards"]
)
def test_every_form_of_program_consumes_everything_once_across_a_restart(stage: Stage, program: str) -> None:
    """Stopped by SIGTERM in the middle and started again: each record is handled once, in order within its shard."""
    data = [str(number) for number in range(2_000)]
    stage.put(*data[:1_000])
    first = stage.start(program)
    until(lambda: len(stage.handled()) >= 500)
    first.send_signal(signal.SIGTERM)
    ended(first)
    stage.put(*data[1_000:])
    second = stage.start(program)
    until(lambda: len(stage.handled()) >= 2_000)
    second.send_signal(signal.SIGTERM)
    ended(second)
    assert sorted(stage.handled(), key=int) == data
    lines = (stage.folder / "handled").read_text().splitlines()
    for shard in {line.split()[0] for line in lines}:
        of_shard = [int(line.split()[1]) for line in lines if line.split()[0] == shard]
        assert of_shard == sorted(of_shard)
    assert stage.owners() == {None}
