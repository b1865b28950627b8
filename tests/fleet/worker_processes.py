"""Starts, kills, pauses and stops worker processes, and remembers what was done to each."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
POLL_EVERY_S = 0.1
EXIT_DEADLINE_S = 60.0


@dataclass
class WorkerProcesses:
    """Workers with the same settings; each has its own id and process."""

    folder: Path
    options: dict[str, Any]
    program: str = "tests.fleet.worker_program"
    fates: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
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
        """The workers that run, oldest first."""
        return list(self._running)

    def add(self) -> str:
        """One more worker joins a running fleet."""
        self.faults["added"] += 1
        return self.start()

    def kill(self, worker: str) -> None:
        """Kill -9."""
        process = self._running.pop(worker)
        process.kill()
        process.wait()
        self._note(worker, "killed")

    def pause(self, worker: str) -> None:
        """SIGSTOP: the process stands still; its leases run out."""
        self._running[worker].send_signal(signal.SIGSTOP)
        self._note(worker, "paused")

    def go_on(self, worker: str) -> None:
        """SIGCONT: it wakes up and does not know how long it slept."""
        self._running[worker].send_signal(signal.SIGCONT)

    def stop(self, worker: str) -> None:
        """SIGTERM: it drains, checkpoints, releases and exits with 0."""
        wait_until((self.folder / f"{worker}.handled").exists, f"{worker} has begun", EXIT_DEADLINE_S)
        process = self._running.pop(worker)
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(EXIT_DEADLINE_S) == 0, self.output_of(worker)
        finally:
            process.kill()
        self._note(worker, "stopped")

    def stop_all(self) -> None:
        """Stop every worker in good order."""
        injected = self.faults["stopped"]
        for worker in self.workers:
            self.stop(worker)
        self.faults["stopped"] = injected  # the end of a run is no fault

    def kill_all(self) -> None:
        """Leave nothing running, whatever happened."""
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self._running.clear()

    def take_ended(self) -> list[tuple[str, str]]:
        """The workers that have ended by themselves, and the end of what they printed; they are forgotten then."""
        ended = [worker for worker, process in self._running.items() if process.poll() is not None]
        for worker in ended:
            del self._running[worker]
        return [(worker, self.output_of(worker)) for worker in ended]

    def check_alive(self) -> None:
        """No worker may have ended by itself."""
        for worker, process in self._running.items():
            assert process.poll() is None, f"{worker} ended by itself:\n{self.output_of(worker)}"

    def output_of(self, worker: str) -> str:
        """The end of what a worker printed."""
        return (self.folder / f"{worker}.log").read_text(errors="replace")[-3000:]

    def note_lost_leases(self) -> None:
        """On a busy machine a worker may be kept from its heartbeat; it then says so, and that explains repetitions."""
        for path in self.folder.glob("*.log"):
            if "lease lost" in path.read_text(errors="replace"):
                self.fates[path.stem].add("lost a lease")

    def handled(self) -> int:
        """How many lines the workers have written so far; repeated records count each time."""
        return sum(path.read_bytes().count(b"\n") for path in self.folder.glob("*.handled"))

    def _note(self, worker: str, what: str) -> None:
        self.fates[worker].add(what)
        self.faults[what] += 1


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float) -> None:
    """Wait for something to hold, with a generous deadline."""
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, f"after {deadline_s} s still not: {what}"
        time.sleep(POLL_EVERY_S)
