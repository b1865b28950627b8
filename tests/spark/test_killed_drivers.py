"""Drivers in processes of their own: killed at critical points, frozen, stopped, and sharing leases."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import pytest

from tests.fleet.worker_processes import wait_until
from tests.spark.conftest import ROOT, MakeWorld
from tests.spark.gates import BEFORE_PIN, COMMITTED, PINNED, WRITTEN
from tests.spark.pipeline_world import PATIENCE_S, PipelineWorld

POINTS = (BEFORE_PIN, PINNED, WRITTEN, COMMITTED)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # each test starts several JVMs


@dataclass
class Driver:
    """A driver program with its JVM, its reader and its Python workers: all processes of one session."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to every process of the session."""
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Send SIGKILL to all processes until none is left."""
        wait_until(self._is_killed, "all processes are gone", PATIENCE_S)
        self.wait()  # a process that has just died may not have been reaped yet

    def stop(self) -> None:
        """Send SIGTERM to the program, as a supervisor does."""
        self.process.terminate()
        self.wait()

    def wait(self) -> int:
        """Wait until the program has ended."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver does not end:\n{self.output()}") from None

    def output(self) -> str:
        """The end of its output."""
        return self.log.read_text(errors="replace")[-4000:]

    def check_runs(self) -> bool:
        """Return True. Fails if the program has ended."""
        assert self.process.poll() is None, f"the driver has ended:\n{self.output()}"
        return True

    def _is_killed(self) -> bool:
        self.signal_all(signal.SIGKILL)
        return not self._processes()

    def _processes(self) -> list[int]:
        """The processes of the session. Spark's daemons leave the process group, but not the session."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):
                state, *rest = stat.read_text().rpartition(")")[2].split()
                if int(rest[2]) == self.process.pid and state != "Z":
                    found.append(int(stat.parent.name))
        return found


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
