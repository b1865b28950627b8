"""Servers of one test run: started by whoever needs one first, shared by all its processes, ended with the run.

The processes of a run share a folder (`Run.folder`); in it lies, per server, a lock, the log, and a small file
that says where the server is. A guard process ends the server even when the run is killed.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from tests.servers.catalog import Kind
from tests.servers.install import HERE, exclusively
from tests.servers.server import Server

# They take 1-3 s; a busy machine with cold caches may take many times that.
START_DEADLINE_S = 90.0
STARTS_MAX = 3
POLL_EVERY_S = 0.05


class ServerError(Exception):
    """A server did not start."""


@dataclass(frozen=True, slots=True)
class Run:
    """One test run: the process that controls it, and the folder that its processes share."""

    owner: int
    folder: Path

    def server(self, kind: Kind) -> Server:
        """The run's server of this kind, started now if it is not there yet."""
        note = self.folder / f"{kind.name}.json"
        with exclusively(self.folder / f"{kind.name}.lock"):
            if not note.exists():
                pid, url = self._start(kind)
                note.write_text(json.dumps({"pid": pid, "url": url}))
        return Server(kind.name, json.loads(note.read_text())["url"], self._log(kind))

    def end(self) -> None:
        """Ends every server of the run. Safe to call when some are already gone."""
        for note in self.folder.glob("*.json"):
            with suppress(ProcessLookupError):
                os.kill(json.loads(note.read_text())["pid"], signal.SIGTERM)

    def log_tails(self, names: set[str]) -> dict[str, str]:
        """What the named servers printed last, for those that run."""
        found = [log for log in self.folder.glob("*.log") if log.stem in names]
        return {log.stem: Server(log.stem, "", log).log_tail() for log in found}

    def _log(self, kind: Kind) -> Path:
        return self.folder / f"{kind.name}.log"

    def _start(self, kind: Kind) -> tuple[int, str]:
        """Another process may take the port before the server does, so a server that dies at once starts anew."""
        for _ in range(STARTS_MAX):
            port = _free_port()
            server = Server(kind.name, f"http://127.0.0.1:{port}", self._log(kind))
            guard = self._start_guarded(kind, port, server.log)
            if _becomes_ready(kind, server, guard):
                return guard.pid, server.url
        raise ServerError(f"{kind.name} ended at once, {STARTS_MAX} times. Its log:\n{server.log_tail()}")

    def _start_guarded(self, kind: Kind, port: int, log: Path) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-S", "-E", str(HERE / "guard.py"), str(self.owner), *kind.command(port)]
        with log.open("ab") as output:
            guard = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ | kind.environment(port),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the test run, which then ends its servers itself
            )
        _GUARDS.append(guard)
        return guard


# A guard outlives the code that started it; forgetting it would be reported as a leaked process.
_GUARDS: list["subprocess.Popen[bytes]"] = []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _becomes_ready(kind: Kind, server: Server, guard: "subprocess.Popen[bytes]") -> bool:
    deadline = time.monotonic() + START_DEADLINE_S
    while guard.poll() is None:
        if _answers(kind, server):
            return True
        if time.monotonic() > deadline:
            guard.terminate()
            raise ServerError(
                f"{kind.name} did not answer within {START_DEADLINE_S} s. Its log:\n{server.log_tail()}"
            )
        time.sleep(POLL_EVERY_S)
    return False


def _answers(kind: Kind, server: Server) -> bool:
    try:
        kind.is_ready(server)
    except (BotoCoreError, ClientError):
        return False
    return True
