"""Starts, kills, pauses and stops worker processes, and records the faults of each."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
POLL_EVERY_S = 0.1
EXIT_DEADLINE_S = 60.0


@dataclass
class WorkerProcesses:
    """Workers with the same settings. Each has its own id and process."""

    folder: Path
    options: dict[str, Any]
    program: str = "tests.fleet.worker_program"
    faults_by_worker: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    faults: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    _started: int = 0

    def start(self) -> str:
        """Start a worker."""
        self._started += 1
        worker = f"worker-{self._started}"
        options = self.options | {"worker_id": worker}
        command = [sys.executable, "-m", self.program, json.dumps(options), str(self.folder)]
        environment = os.environ | {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        with (self.folder / f"{worker}.log").open("wb") as output:
            self._running[worker] = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        return worker

    @property
    def workers(self) -> list[str]:
        """The running workers, oldest first."""
        return list(self._running)

    def add(self) -> str:
        """Add a worker to a running fleet."""
        self.faults["added"] += 1
        return self.start()

    def kill(self, worker: str) -> None:
        """Send SIGKILL."""
        process = self._running.pop(worker)
        process.kill()
        process.wait()
        self._record(worker, "killed")

    def pause(self, worker: str) -> None:
        """Send SIGSTOP: the process is suspended, and its leases expire."""
        self._running[worker].send_signal(signal.SIGSTOP)
        self._record(worker, "paused")

    def pause_outside_a_write(self, worker: str) -> None:
        """Pause a worker while it does not hold the lock of a SQLite file: nobody else could write until it resumes."""

        def pause() -> bool:
            self.pause(worker)
            if not any(_is_locked(file) for file in self.folder.glob("*.sqlite")):
                return True
            self.resume(worker)
            return False

        wait_until(pause, f"{worker} is paused outside a write", EXIT_DEADLINE_S)

    def resume(self, worker: str) -> None:
        """Send SIGCONT: the process continues without knowing how long it was suspended."""
        self._running[worker].send_signal(signal.SIGCONT)

    def stop(self, worker: str) -> None:
        """Send SIGTERM: the worker drains, checkpoints, releases its leases and exits with 0."""
        wait_until((self.folder / f"{worker}.handled").exists, f"{worker} has started", EXIT_DEADLINE_S)
        process = self._running.pop(worker)
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(EXIT_DEADLINE_S) == 0, self.output_of(worker)
        finally:
            process.kill()
        self._record(worker, "stopped")

    def stop_all(self) -> None:
        """Stop all workers cleanly."""
        injected = self.faults["stopped"]
        for worker in self.workers:
            self.stop(worker)
        self.faults["stopped"] = injected  # a stop at the end of a run is not a fault

    def kill_all(self) -> None:
        """Kill all processes that still run."""
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self._running.clear()

    def remove_ended(self) -> list[tuple[str, str]]:
        """Remove the workers that ended by themselves, and return the end of their output."""
        ended = [worker for worker, process in self._running.items() if process.poll() is not None]
        for worker in ended:
            del self._running[worker]
        return [(worker, self.output_of(worker)) for worker in ended]

    def check_alive(self) -> None:
        """Fail if a worker has ended by itself."""
        for worker, process in self._running.items():
            assert process.poll() is None, f"{worker} ended by itself:\n{self.output_of(worker)}"

    def output_of(self, worker: str) -> str:
        """Return the end of a worker's output."""
        return (self.folder / f"{worker}.log").read_text(errors="replace")[-3000:]

    def record_lost_leases(self) -> None:
        """Record each lost lease as a fault. On a busy machine a worker may miss heartbeats, which explains repeats."""
        for path in self.folder.glob("*.log"):
            if "lease lost" in path.read_text(errors="replace"):
                self.faults_by_worker[path.stem].add("lost a lease")

    def handled(self) -> int:
        """Return the number of handled records so far. Repeated records count each time."""
        return sum(path.read_bytes().count(b"\n") for path in self.folder.glob("*.handled"))

    def _record(self, worker: str, fault: str) -> None:
        self.faults_by_worker[worker].add(fault)
        self.faults[fault] += 1


def _is_locked(file: Path) -> bool:
    with closing(sqlite3.connect(file, timeout=1, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float) -> None:
    """Wait until a condition holds, with a generous deadline."""
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, f"after {deadline_s} s still not: {what}"
        time.sleep(POLL_EVERY_S)
