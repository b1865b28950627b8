"""The processes of a Spark pipeline: `leasehold pipeline`, which is restarted when it ends.

Each run has its own operating-system session, so that orphaned processes are found too. Linux only.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.chaos.fault_plan import Victim

ROOT = Path(__file__).parent.parent.parent
STOP_DEADLINE_S = 90.0
_READER = "pyspark.sql.streaming.python_streaming_source_runner"
_TASK = "pyspark.daemon pyspark.worker"
_JVM = "org.apache.spark.deploy.SparkSubmit"
_BATCH = re.compile(rb"batch \d+: ([0-9,]+) records?")


class Process(NamedTuple):
    """An operating-system process."""

    pid: int
    parent: int
    session: int
    command: str


def list_processes() -> Iterator[Process]:
    """List all running processes, without zombies."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has just ended
            # The name in parentheses may contain anything. State, parent, group and session follow it.
            state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if state != "Z":
                yield Process(int(folder.name), int(parent), int(session), command)


@dataclass
class SparkProcesses:
    """One pipeline. Its output is in `folder`."""

    file: Path
    folder: Path
    environment: dict[str, str]
    starts: int = 0
    failures: list[str] = field(
        default_factory=list
    )  # the last output of each run that ended without a signal of ours
    _running: "subprocess.Popen[bytes] | None" = None
    _sessions: set[int] = field(default_factory=set)
    _was_signalled: bool = False

    def start(self) -> None:
        """Start a run."""
        self.starts += 1
        self._was_signalled = False
        command = [sys.executable, "-m", "leasehold.cli", "pipeline", str(self.file)]
        command += ["--log", str(self.folder / "spark.log")]
        with self._output_path(self.starts).open("wb") as output:
            self._running = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._sessions.add(self._running.pid)

    def keep_running(self) -> None:
        """Restart the pipeline if it has ended."""
        if self._running is not None and self._running.poll() is not None:
            if not self._was_signalled:
                self.failures.append(self._read_output(self.starts).decode(errors="replace").strip()[-500:])
            self.start()

    def find(self, victim: Victim) -> list[int]:
        """Return the processes of this kind; none before the first batch of the run."""
        if (
            self._running is None
            or self._running.poll() is not None
            or not _BATCH.search(self._read_output(self.starts))
        ):
            return []
        found = [each for each in list_processes() if each.session == self._running.pid]
        match victim:
            case Victim.DRIVER:
                return [self._running.pid]
            case Victim.PIPELINE:
                return [each.pid for each in found]
            case Victim.JVM:
                return [each.pid for each in found if _JVM in each.command]
            case Victim.READER:
                return [each.pid for each in found if _READER in each.command]
            case _:
                daemons = {each.pid for each in found if _TASK in each.command}
                return [each.pid for each in found if each.pid in daemons and each.parent in daemons]

    def signal(self, pids: list[int], number: int) -> None:
        """Send a signal to processes."""
        self._was_signalled = True
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def records(self) -> int:
        """Return the number of records in the batches of all runs."""
        output = b"".join(self._read_output(number) for number in range(1, self.starts + 1))
        return sum(int(count.replace(b",", b"")) for count in _BATCH.findall(output))

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        assert self._running is not None
        self._running.terminate()
        return self._running.wait(STOP_DEADLINE_S)

    def kill_all(self) -> None:
        """Kill the processes of all runs."""
        for each in list_processes():
            if each.session in self._sessions:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
        if self._running is not None:
            self._running.wait()

    def _output_path(self, number: int) -> Path:
        return self.folder / f"pipeline-{number}.out"

    def _read_output(self, number: int) -> bytes:
        return self._output_path(number).read_bytes()
