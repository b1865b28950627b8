"""A driver program in a session of its own, which a test can kill with all of its processes."""

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.fleet.worker_processes import wait_until
from tests.spark.pipeline_world import PATIENCE_S


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
