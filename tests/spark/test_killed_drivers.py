"""Drivers in processes of their own: killed at critical points, frozen, stopped, and sharing leases."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import cycle
from typing import Any

import pytest

from leasehold.local import LocalKinesis
from tests.fleet.worker_processes import wait_until
from tests.spark.conftest import ROOT, MakeWorld
from tests.spark.driver_process import Driver
from tests.spark.gates import BEFORE_PIN, COMMITTED, PINNED, WRITTEN, Gates
from tests.spark.pipeline_world import PATIENCE_S, PipelineWorld

POINTS = (BEFORE_PIN, PINNED, WRITTEN, COMMITTED)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # each test starts several JVMs


@contextmanager
def driver(
    world: PipelineWorld, *, to_the_end: bool = False, name: str = "driver", **changes: str
) -> Iterator[Driver]:
    """Run a driver, and kill it at the end. Drivers with the same name share a checkpoint location."""
    settings = {
        "source": world.source(**changes),
        "archive": str(world.archive),
        "checkpoint": str(world.folder / world.name / f"checkpoint-{name}"),
        "to_the_end": to_the_end,
    }
    log = world.folder / world.name / f"{name}.log"
    log.with_suffix(".json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "tests.spark.driver_program", str(log.with_suffix(".json"))]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    running = Driver(process, log)
    try:
        yield running
    finally:
        running.kill()


def test_a_driver_is_killed_at_every_point_of_a_batch(make_world: MakeWorld) -> None:
    """The points are before the pin, the write, the sink's commit and Spark's commit. Replays have the same rows.

    The drivers read by enhanced fan-out and by polling in turn, so a batch is repeated the other way.
    """
    world = make_world(shards=2)
    for point, mode in zip(POINTS, cycle(["efo", "polling"]), strict=False):
        world.put(100)
        world.gates.set(point, "hold")
        with driver(world, maxRecordsPerTrigger="60", consumerMode=mode) as running:
            wait_until(
                lambda: running.check_runs() and world.gates.is_reached(point),  # noqa: B023
                f"a driver is at {point}",
                PATIENCE_S,
            )
            running.kill()
        world.gates.open(point)
    world.put(100)
    with driver(world, to_the_end=True, consumerMode="efo") as running:
        assert running.wait() == 0, running.output()
    world.check()
    repeated = [attempts for attempts in world.gates.attempts().values() if len(attempts) > 1]
    assert repeated, "no batch was written twice"
    for first, *others in repeated:
        assert all(rows == first for rows in others)


def test_a_driver_that_begins_in_the_archive_is_killed(make_world: MakeWorld) -> None:
    """Its history has a shard that has left the stream. The newest records are only in the stream."""
    with LocalKinesis.in_thread() as kinesis:
        world = make_world(shards=1, kinesis=kinesis)
        world.put(200)
        client = kinesis.client()
        (shard,) = client.list_shards(StreamName=world.name)["Shards"]
        client.split_shard(
            StreamName=world.name, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(2**127)
        )
        kinesis.advance(timedelta(hours=20))
        world.put(100)
        with driver(world, to_the_end=True) as running:
            assert running.wait() == 0, running.output()
        history = world.archive.rename(world.archive.with_name("history"))
        world.archive.mkdir()
        kinesis.advance(timedelta(hours=5))
        world.put(50)
        left = {each["ShardId"] for each in client.list_shards(StreamName=world.name)["Shards"]}
        assert shard["ShardId"] not in left
        changes: dict[str, Any] = {
            "applicationName": f"{world.name}-second",
            "startingPosition": "archive",
            "archive": str(history),
            "maxRecordsPerTrigger": "60",
        }
        gates = Gates(world.gates_folder, changes["applicationName"])
        gates.set(PINNED, "hold")
        with driver(world, name="second", **changes) as running:
            wait_until(lambda: running.check_runs() and gates.is_reached(PINNED), "it is pinned", PATIENCE_S)
            running.kill()
        gates.open(PINNED)
        with driver(world, name="second", to_the_end=True, **changes) as running:
            assert running.wait() == 0, running.output()
        world.check()


def test_a_zombie_driver_does_not_change_the_archive(make_world: MakeWorld) -> None:
    """It is frozen between pin and write, replaced by another run, and resumed. The archive has all its rows."""
    world = make_world(shards=2)
    world.put(100)
    world.gates.set(PINNED, "hold")
    with driver(world) as zombie:
        wait_until(lambda: zombie.check_runs() and world.gates.is_reached(PINNED), "it is pinned", PATIENCE_S)
        zombie.signal_all(signal.SIGSTOP)
        world.gates.open(PINNED)
        world.put(100)
        with driver(world, to_the_end=True) as successor:
            assert successor.wait() == 0, successor.output()
        world.check()
        zombie.signal_all(signal.SIGCONT)
        assert zombie.wait() != 0  # Spark detects that another run has committed its batch
    world.check()


def test_two_drivers_and_a_worker_share_leases_and_stop_one_after_the_other(make_world: MakeWorld) -> None:
    """A stopped member leaves its shards to the others. All three write to one archive, exactly once."""
    world = make_world(shards=8)
    world.put(400)
    with (
        driver(world, name="first", consumerMode="efo") as first,
        driver(world, name="second") as second,
        worker(world) as third,
    ):
        wait_until(lambda: len(owners(world)) == 3, "all three have shards", PATIENCE_S)
        world.put(400)
        stops: list[Callable[[], object]] = [first.stop, third.terminate, second.stop]
        for stop in stops:
            wait_until(world.has_all, "everything is archived", PATIENCE_S)
            stop()
            world.put(200)
    with driver(world, name="second", to_the_end=True) as last:
        assert last.wait() == 0, last.output()
    world.check()


def owners(world: PipelineWorld) -> set[str]:
    """The workers that own leases."""
    return {lease.owner for lease in world.leases().values() if lease.owner is not None}


WORKER = """
import json, sys
from leasehold import Consumer
from leasehold.archive import ArchiveSettings
from leasehold.worker.archive_handler import archive_batches
consumer = Consumer(**json.loads(sys.argv[1]))
archive_batches(consumer, ArchiveSettings(url=sys.argv[2]), max_wait="500ms")
consumer.run()
"""


@contextmanager
def worker(world: PipelineWorld) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a plain worker that writes to the same archive."""
    source = world.source()
    options = {
        "stream": world.name,
        "application": world.name,
        "region": source["region"],
        "kinesis_endpoint": source["endpointUrl"],
        "dynamodb_endpoint": source["dynamodbEndpointUrl"],
        "failover_after": source["failoverAfter"],
        "mode": source["mode"],
        "refresh_every": "1s",
        "initial_position": "trim_horizon",
    }
    with (world.folder / world.name / "worker.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, json.dumps(options), str(world.archive)],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
