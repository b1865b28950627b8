"""Drivers as processes of their own: killed at the worst moments, frozen, stopped, and sharing with others."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fleet.worker_processes import wait_until
from tests.spark.conftest import ROOT, MakeScene
from tests.spark.gates import BEFORE_PIN, COMMITTED, PINNED, WRITTEN
from tests.spark.pipeline_world import PATIENCE_S, Scene

POINTS = (BEFORE_PIN, PINNED, WRITTEN, COMMITTED)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # several JVMs each, on whatever machine


@dataclass
class Driver:
    """A driver program with its JVM, its reader and its Python workers: all processes of one session."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to every process, wherever it stands in the tree."""
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill -9, all of them, until none is left."""
        wait_until(self._is_killed, "all processes are gone", PATIENCE_S)

    def stop(self) -> None:
        """SIGTERM to the program, as a supervisor would."""
        self.process.terminate()
        self.wait()

    def wait(self) -> int:
        """Until it has ended."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver does not end:\n{self.output()}") from None

    def output(self) -> str:
        """The end of what it printed."""
        return self.log.read_text(errors="replace")[-4000:]

    def check_runs(self) -> bool:
        """True, unless it has ended by itself."""
        assert self.process.poll() is None, f"the driver has ended:\n{self.output()}"
        return True

    def _is_killed(self) -> bool:
        self.signal_all(signal.SIGKILL)
        self.process.poll()
        return not self._processes()

    def _processes(self) -> list[int]:
        """By session: Spark's daemons leave the process group, but not the session."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):
                state, *rest = stat.read_text().rpartition(")")[2].split()
                if int(rest[2]) == self.process.pid and state != "Z":
                    found.append(int(stat.parent.name))
        return found


@contextmanager
def driver(
    stage: Scene, *, to_the_end: bool = False, name: str = "driver", **changes: str
) -> Iterator[Driver]:
    """A driver that runs, and surely does not at the end. Drivers of one name have one checkpoint location."""
    told = {
        "source": stage.source(**changes),
        "archive": str(stage.archive),
        "checkpoint": str(stage.folder / stage.name / f"checkpoint-{name}"),
        "to_the_end": to_the_end,
    }
    log = stage.folder / stage.name / f"{name}.log"
    log.with_suffix(".json").write_text(json.dumps(told))
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


def test_a_driver_is_killed_at_every_point_of_a_batch(scene: MakeScene) -> None:
    """Before the pin, before the write, before the commit, before Spark's own: every replay has the same rows."""
    stage = scene(shards=2)
    for point in POINTS:
        stage.put(100)
        stage.gates.set(point, "hold")
        with driver(stage, maxRecordsPerTrigger="60") as running:
            wait_until(
                lambda: running.check_runs() and stage.gates.is_reached(point),  # noqa: B023
                f"a driver is at {point}",
                PATIENCE_S,
            )
            running.kill()
        stage.gates.open(point)
    stage.put(100)
    with driver(stage, to_the_end=True) as running:
        assert running.wait() == 0, running.output()
    stage.check()
    repeated = [attempts for attempts in stage.gates.attempts().values() if len(attempts) > 1]
    assert repeated, "no batch was written twice"
    for first, *others in repeated:
        assert all(rows == first for rows in others)


def test_a_zombie_driver_leaves_the_archive_as_it_is(scene: MakeScene) -> None:
    """Frozen between pin and write, replaced by another run, and woken up: what it still writes is there already."""
    stage = scene(shards=2)
    stage.put(100)
    stage.gates.set(PINNED, "hold")
    with driver(stage) as zombie:
        wait_until(lambda: zombie.check_runs() and stage.gates.is_reached(PINNED), "it is pinned", PATIENCE_S)
        zombie.signal_all(signal.SIGSTOP)
        stage.gates.open(PINNED)
        stage.put(100)
        with driver(stage, to_the_end=True) as heir:
            assert heir.wait() == 0, heir.output()
        stage.check()
        zombie.signal_all(signal.SIGCONT)
        assert zombie.wait() != 0  # Spark finds out that another run has committed its batch
    stage.check()


def test_two_applications_of_spark_and_a_worker_share_and_leave_one_after_the_other(scene: MakeScene) -> None:
    """Whoever is stopped leaves its shards to the others; the archive of all three is exactly-once."""
    stage = scene(shards=8)
    stage.put(400)
    with driver(stage, name="first") as first, driver(stage, name="second") as second, worker(stage) as third:
        wait_until(lambda: len(owners(stage)) == 3, "all three have shards", PATIENCE_S)
        stage.put(400)
        stops: list[Callable[[], object]] = [first.stop, third.terminate, second.stop]
        for stop in stops:
            wait_until(stage.has_all, "everything is archived", PATIENCE_S)
            stop()
            stage.put(200)
    with driver(stage, name="second", to_the_end=True) as last:
        assert last.wait() == 0, last.output()
    stage.check()


def owners(stage: Scene) -> set[str]:
    """Who holds leases."""
    return {lease.owner for lease in stage.leases().values() if lease.owner is not None}


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
def worker(stage: Scene) -> Iterator["subprocess.Popen[bytes]"]:
    """A plain worker that archives, too."""
    source = stage.source()
    options = {
        "stream": stage.name,
        "application": stage.name,
        "region": source["region"],
        "kinesis_endpoint": source["endpointUrl"],
        "dynamodb_endpoint": source["dynamodbEndpointUrl"],
        "failover_after": source["failoverAfter"],
        "mode": source["mode"],
        "refresh_every": "1s",
        "initial_position": "trim_horizon",
    }
    with (stage.folder / stage.name / "worker.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, json.dumps(options), str(stage.archive)],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
