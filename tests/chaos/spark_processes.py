"""A Spark pipeline as the processes that it consists of: `leasehold pipeline`, started again whenever it ends.

Each run is a session of the operating system, by which even processes without a parent are found again. Linux only.
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
    """A process of this machine."""

    pid: int
    parent: int
    session: int
    command: str


def list_processes() -> Iterator[Process]:
    """All that run. One that is dead and not yet waited for does not."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            # The name, in parentheses, may hold anything; state, parent, group and session come after it.
            state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if state != "Z":
                yield Process(int(folder.name), int(parent), int(session), command)


@dataclass
class SparkProcesses:
    """One pipeline; what it prints is in `folder`."""

    file: Path
    folder: Path
    environment: dict[str, str]
    starts: int = 0
    ended_by_itself: list[str] = field(default_factory=list)  # the last line of each run that did
    _running: "subprocess.Popen[bytes] | None" = None
    _sessions: set[int] = field(default_factory=set)
    _was_hurt: bool = False

    def start(self) -> None:
        """Start a run."""
        self.starts += 1
        self._was_hurt = False
        command = [sys.executable, "-m", "leasehold.cli", "pipeline", str(self.file)]
        command += ["--log", str(self.folder / "spark.log")]
        with self._output(self.starts).open("wb") as output:
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
        """Start again if it has ended."""
        if self._running is not None and self._running.poll() is not None:
            if not self._was_hurt:
                self.ended_by_itself.append(self._said(self.starts).decode(errors="replace").strip()[-500:])
            self.start()

    def find(self, victim: Victim) -> list[int]:
        """The processes that play this part now; none while the run has not done a batch yet."""
        if (
            self._running is None
            or self._running.poll() is not None
            or not _BATCH.search(self._said(self.starts))
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
        """Send a signal to processes that `find` found."""
        self._was_hurt = True
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def records(self) -> int:
        """How many records the batches of all runs had."""
        said = b"".join(self._said(number) for number in range(1, self.starts + 1))
        return sum(int(count.replace(b",", b"")) for count in _BATCH.findall(said))

    def stop(self) -> int:
        """SIGTERM; its exit code. 0 is right."""
        assert self._running is not None
        self._running.terminate()
        return self._running.wait(STOP_DEADLINE_S)

    def kill_all(self) -> None:
        """Leave nothing running, whatever happened."""
        for each in list_processes():
            if each.session in self._sessions:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
        if self._running is not None:
            self._running.wait()

    def _output(self, number: int) -> Path:
        return self.folder / f"pipeline-{number}.out"

    def _said(self, number: int) -> bytes:
        return self._output(number).read_bytes()
