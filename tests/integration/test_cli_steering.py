"""`leasehold release` and `leasehold reset` as processes, on two running workers under load."""

import asyncio
import json
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner

from leasehold.adapters.sqlite_rows import SqliteRows
from leasehold.cli.command import leasehold
from leasehold.core.position import Position
from leasehold.local import LocalKinesis
from tests.integration.cli_process import start_cli
from tests.integration.test_cli_explain import SHARDS, lease, write_leases
from tests.integration.test_worker_process import (
    FAILOVER,
    TIMEOUT_S,
    ProcessWorld,
    next_millisecond,
    wait_until,
)


@pytest.fixture
def world(
    local_kinesis: LocalKinesis, unique_name: Callable[[str], str], tmp_path: Path
) -> Iterator[ProcessWorld]:
    """A stream of two shards. All processes are killed in the end."""
    created = ProcessWorld(local_kinesis, unique_name("steered"), tmp_path)
    yield created
    for process in created.processes:
        process.kill()
        process.communicate()


class Load:
    """Puts records from another thread until the end of the block."""

    def __init__(self, world: ProcessWorld) -> None:
        self.put: list[str] = []
        self._world = world
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            name = f"load {len(self.put)}"
            self._world.put(name)
            self.put.append(name)


def test_a_running_fleet_is_reset_and_loses_nothing(world: ProcessWorld) -> None:
    """Records after the new position come again, others do not, also if a command is killed while it waits."""

    def reset(*more: str) -> "subprocess.Popen[str]":
        where = ("--sqlite", "leases.sqlite", "--stream", world.stream, "--failover-after", "5", "--yes")
        endpoint = ("--kinesis-endpoint-url", world.kinesis.endpoint_url)
        return start_cli("reset", *where, *endpoint, *more, folder=world.folder)

    for name in ("anna", "bert"):
        world.start("handles_everything", worker_id=name, initial_position="trim_horizon", **FAILOVER)
    early, late = ([f"{word} {number}" for number in range(50)] for word in ("early", "late"))
    world.put(*early)
    wait_until(lambda: world.has_handled_exactly({*early}) and world.owners() == {"anna", "bert"})
    at = next_time(world.kinesis)
    world.put(*late)
    wait_until(lambda: set(late) <= set(world.handled()))
    with Load(world) as load:
        with reset("--to", "trim-horizon") as killed:
            assert killed.stderr is not None
            assert "waiting for" in killed.stderr.readline()
            killed.kill()
        # The kill may have come after the move of a lease. From then on a worker may read it again, and checkpoint.
        is_at_start = any(not each.checkpoint.is_record for each in world.read_leases())
        is_moved = is_at_start or sum(each.startswith("early") for each in world.handled()) > len(early)
        with reset("--to", at, "--json") as process:
            out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, err
        assert len(json.loads(out)["moved"]) == 2
        wait_until(lambda: min(Counter(world.handled())[each] for each in late) >= 2)
    wait_until(lambda: set(load.put) <= set(world.handled()))
    counts = Counter(world.handled())
    assert {counts[each] for each in early} <= ({1, 2} if is_moved else {1})
    assert {counts[each] for each in late} <= ({2, 3} if is_moved else {2})
    assert {counts[each] for each in load.put} <= ({1, 2, 3} if is_moved else {1, 2})


def next_time(kinesis: LocalKinesis) -> str:
    """A time between all records until now and all later ones."""
    at_ms = next_millisecond(kinesis)
    next_millisecond(kinesis)
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


Run = Callable[..., Any]


@pytest.fixture
def run(local_kinesis: LocalKinesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process, on the leases in `leases.sqlite`."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    file = tmp_path / "leases.sqlite"

    def run_command(name: str, *arguments: str) -> Any:
        where = ("--leases", f"sqlite:///{file}", "--kinesis-endpoint-url", local_kinesis.endpoint_url)
        return CliRunner().invoke(leasehold, [name, *where, *arguments])

    return run_command


def test_the_plan_is_shown_and_confirmed_before_anything_is_written(
    local_kinesis: LocalKinesis, unique_name: Callable[[str], str], tmp_path: Path, run: Run
) -> None:
    """A dry run, a missing confirmation and a wrong position write nothing. The leases of a dead owner move."""
    stream = unique_name("planned")
    client = local_kinesis.client()
    client.create_stream(StreamName=stream, ShardCount=1)
    first = client.put_record(StreamName=stream, Data=b"x", PartitionKey="k")["SequenceNumber"]
    write_leases(tmp_path, lease(SHARDS[0], Position(first)))
    before = run("leases", "--json").output

    def reset(*more: str) -> Any:
        return run("reset", "--stream", stream, "--failover-after", "1", *more)

    planned = reset("--to", "trim-horizon", "--dry-run")
    assert planned.exit_code == 0, planned.output
    assert "all retained records again" in planned.output
    assert json.loads(reset("--to", "trim-horizon", "--dry-run", "--json").output)["dry_run"] is True
    refused = reset("--to", "trim-horizon")
    assert (refused.exit_code, "add --yes" in refused.output) == (2, True)
    assert "add --shard" in reset("--to", first).output
    for time, sentence in (
        ("2199-01-01T00:00:00Z", "is in the future"),
        ("2020-01-01T00:00:00Z", "retains records"),
    ):
        unusable = reset("--to", time, "--yes")
        assert (unusable.exit_code, f"--to {time}" in unusable.output, sentence in unusable.output) == (
            2,
            True,
            True,
        )
    for foreign in ("17", str(int(first) * 7)):  # of another stream, says the server
        wrong = reset("--to", foreign, "--shard", SHARDS[0], "--yes")
        assert wrong.exit_code == 1
        assert "belongs to another shard or stream" in wrong.output
        assert "Exception" not in wrong.output
    assert run("leases", "--json").output == before
    moved = reset("--to", "trim-horizon", "--yes")
    assert moved.exit_code == 0, moved.output
    (row,) = json.loads(run("leases", "--json").output)["leases"]
    assert (row["owner"], row["checkpoint"]["sequence_number"]) == (None, "TRIM_HORIZON")
    assert "1 already there" in reset("--to", "trim-horizon", "--yes").output
    assert "Warning" not in planned.output + moved.output
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    skipping = reset("--to", now, "--yes").output
    assert "Warning: 1 lease would move forward" in skipping
    assert "Warning: 1 lease moved forward" in skipping


def test_latest_warns_of_records_of_shards_without_a_lease(
    local_kinesis: LocalKinesis, unique_name: Callable[[str], str], tmp_path: Path, run: Run
) -> None:
    """The plan, its JSON and the outcome count them, as for shards with a lease."""
    stream = unique_name("unread")
    client = local_kinesis.client()
    client.create_stream(StreamName=stream, ShardCount=2)
    for key in ("0", str(2**127)):
        client.put_record(StreamName=stream, Data=b"x", PartitionKey="k", ExplicitHashKey=key)
    write_leases(tmp_path, lease(SHARDS[0], Position("TRIM_HORIZON"), None))

    def reset(*more: str) -> Any:
        return run("reset", "--stream", stream, "--to", "latest", *more)

    planned = json.loads(reset("--dry-run", "--json").output)
    assert [each["is_forward"] for each in (*planned["moves"], *planned["create"])] == [True, True]
    done = reset("--yes")
    assert done.exit_code == 0, done.output
    assert "records before it are skipped" in done.output
    assert "Warning: 1 new lease would begin after records" in done.output
    assert "Warning: 1 new lease began after records" in done.output
    assert "Warning: 1 lease moved forward" in done.output


def test_released_leases_are_listed(tmp_path: Path, run: Run) -> None:
    """A dead owner is waited for as long as the failover time. A finished lease is not released."""
    write_leases(tmp_path, lease(SHARDS[0], Position("17")), lease(SHARDS[1], Position("18"), None))
    assert "Give either shards" in run("release", SHARDS[0], "--all").output
    unknown = run("release", "--worker", "nobody")
    assert (unknown.exit_code, "leases are owned by anna" in str(unknown.exception) + unknown.output) == (
        1,
        True,
    )
    assert run("release", "--all", "--dry-run").output.splitlines()[-1] == "1 lease would be released"
    released = run("release", SHARDS[0], "--failover-after", "1")
    assert released.exit_code == 0, released.output
    assert released.stdout.splitlines()[1].split() == [SHARDS[0], "anna", "free"]
    assert released.stdout.splitlines()[-1] == "1 lease released"


@pytest.mark.parametrize("what", [("--all",), ("--worker", "anna"), SHARDS[:2]])
def test_a_release_of_several_leases_is_confirmed(tmp_path: Path, run: Run, what: tuple[str, ...]) -> None:
    """Without a terminal it is refused, and nothing is written."""
    write_leases(tmp_path, lease(SHARDS[0], Position("17")), lease(SHARDS[1], Position("18")))
    before = read_rows(tmp_path)
    refused = run("release", *what)
    assert (refused.exit_code, "add --yes" in refused.output) == (2, True)
    assert [line.split() for line in refused.stdout.splitlines()[1:3]] == [
        [SHARDS[0], "anna"],
        [SHARDS[1], "anna"],
    ]
    assert read_rows(tmp_path) == before
    released = run("release", *what, "--yes", "--failover-after", "1")
    assert (released.exit_code, released.stdout.splitlines()[-1]) == (0, "2 leases released")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["reset", "release"])
def test_an_interrupted_command_leaves_the_leases_to_their_owner(
    local_kinesis: LocalKinesis,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    command: str,
    number: signal.Signals,
) -> None:
    """The owner has been asked and does not hand over. At once its row is as before, and it can renew."""
    stream = unique_name("interrupted")
    local_kinesis.client().create_stream(StreamName=stream, ShardCount=1)
    put = local_kinesis.client().put_record(StreamName=stream, Data=b"x", PartitionKey="k")
    write_leases(tmp_path, lease(SHARDS[0], Position(put["SequenceNumber"])))
    what = {"reset": ("--stream", stream, "--to", "trim-horizon", "--yes"), "release": ("--all", "--yes")}[
        command
    ]
    where = ("--sqlite", "leases.sqlite", "--kinesis-endpoint-url", local_kinesis.endpoint_url)
    before = read_rows(tmp_path)
    with start_cli(command, *where, *what, "--failover-after", "600", folder=tmp_path) as process:
        assert process.stderr is not None
        assert "waiting for anna" in process.stderr.readline()
        assert read_rows(tmp_path) != before
        process.send_signal(number)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 128 + number, err
    assert "each lease is at its old or its new position" in err
    assert read_rows(tmp_path) == before


def read_rows(folder: Path) -> Any:
    """All rows of the lease table."""

    async def read() -> Any:
        rows = SqliteRows(folder / "leases.sqlite")
        try:
            return list(await rows.scan())
        finally:
            await rows.close()

    return asyncio.run(read())


PROGRAM = """
from leasehold import Batch, Consumer

consumer = Consumer(stream={stream!r}, application="billing", kinesis_endpoint={endpoint!r})


@consumer.batch(max_wait="50ms")
def save(batch: Batch) -> None:
    with open("handled", "a") as file:
        file.writelines(record.data.decode() + "\\n" for record in batch)
"""


def test_a_period_is_replayed_to_a_handler(
    local_kinesis: LocalKinesis, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """It ends by itself, and needs no lease table."""
    stream = unique_name("replayed")
    client = local_kinesis.client()
    client.create_stream(StreamName=stream, ShardCount=1)
    times = []
    for word in ("before", "inside", "after"):
        client.put_record(StreamName=stream, Data=word.encode(), PartitionKey="k")
        times.append(next_time(local_kinesis))
    (tmp_path / "billing.py").write_text(PROGRAM.format(stream=stream, endpoint=local_kinesis.endpoint_url))
    period = ("--from", times[0], "--to", times[1])
    with start_cli("replay", "billing:consumer", *period, "--json", folder=tmp_path) as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert (json.loads(out)["records"], json.loads(out)["is_complete"]) == (1, True)
    assert (tmp_path / "handled").read_text().split() == ["inside"]
