"""Servers of one test run: started when first needed, shared by all processes of the run, ended with it.

The processes of a run share a folder (`Run.folder`). Per server it holds a lock, the log, and a small file with the
address of the server. A guard process ends the server even when the run is killed.
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

# They take 1-3 s; on a busy machine with cold caches many times that.
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
        """The run's server of this kind. Starts it if it is not running yet."""
        address_file = self.folder / f"{kind.name}.json"
        with exclusively(self.folder / f"{kind.name}.lock"):
            if not address_file.exists():
                pid, url = self._start(kind)
                address_file.write_text(json.dumps({"pid": pid, "url": url}))
        return Server(kind.name, json.loads(address_file.read_text())["url"], self._log(kind))

    def end(self) -> None:
        """End every server of the run. Some may have ended already."""
        for address_file in self.folder.glob("*.json"):
            with suppress(ProcessLookupError):
                os.kill(json.loads(address_file.read_text())["pid"], signal.SIGTERM)

    def log_tails(self, names: set[str]) -> dict[str, str]:
        """The last lines that the named servers printed, for those that run."""
        found = [log for log in self.folder.glob("*.log") if log.stem in names]
        return {log.stem: Server(log.stem, "", log).log_tail() for log in found}

    def _log(self, kind: Kind) -> Path:
        return self.folder / f"{kind.name}.log"

    def _start(self, kind: Kind) -> tuple[int, str]:
        """Another process may take the port first. So a server that exits at once is started again."""
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
                start_new_session=True,  # Ctrl-C goes to the test run, which then ends its servers
            )
        _GUARDS.append(guard)
        return guard


# A guard outlives the code that started it. Without this reference Python would warn about a leaked process.
_GUARDS: list["subprocess.Popen[bytes]"] = []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _becomes_ready(kind: Kind, server: Server, guard: "subprocess.Popen[bytes]") -> bool:
    deadline = time.monotonic() + START_DEADLINE_S
    while guard.poll() is None:
        if _is_ready(kind, server):
            return True
        if time.monotonic() > deadline:
            guard.terminate()
            raise ServerError(
                f"{kind.name} did not respond within {START_DEADLINE_S} s. Its log:\n{server.log_tail()}"
            )
        time.sleep(POLL_EVERY_S)
    return False


def _is_ready(kind: Kind, server: Server) -> bool:
    try:
        kind.is_ready(server)
    except (BotoCoreError, ClientError):
        return False
    return True
