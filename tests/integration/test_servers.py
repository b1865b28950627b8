"""The servers that other tests use: they listen on loopback only, and end with the test run."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.servers import Server
from tests.servers.install import LOCKS, ROOT, InstallError, folder

SERVERS = ("dynamodb_local", "kinesis_local", "ministack")


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


def test_a_server_listens_on_loopback_only(server: Server) -> None:
    """Other machines cannot reach a test server, whatever its default is."""
    port = urlsplit(server.url).port
    assert port is not None
    assert port_is_open("127.0.0.1", port)
    assert not port_is_open(own_address(), port)


def own_address() -> str:
    """Return an address of this machine other than 127.0.0.1. On Linux all of 127/8 is local."""
    return "127.0.0.2" if sys.platform == "linux" else socket.gethostbyname(socket.gethostname())


def port_is_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex((host, port)) == 0


@pytest.mark.parametrize(
    "lock", [*LOCKS.values(), ROOT / "requirements" / "dev.lock"], ids=lambda path: path.name
)
def test_a_lock_file_names_no_registry(lock: Path) -> None:
    """A lock file says what to install. The machine's settings say from where."""
    assert re.findall(r"https?://[^\s\"]+", lock.read_text()) == []


def test_a_missing_server_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error names the server and how to install it."""
    monkeypatch.setattr("tests.servers.install.SERVERS", tmp_path)
    with pytest.raises(InstallError, match=r"ministack is not installed in .*: run `make setup-servers`"):
        folder("ministack")


def test_a_server_ends_when_its_run_is_killed(tmp_path: Path) -> None:
    """A killed test run leaves no server behind."""
    guard = Path(__file__).parents[1] / "servers" / "guard.py"
    program = "import time; print('up', flush=True); time.sleep(600)"
    run = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    guarded = subprocess.Popen(
        [sys.executable, str(guard), str(run.pid), sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
    )
    with guarded:
        assert guarded.stdout is not None
        assert guarded.stdout.readline() == "up\n"
        run.kill()
        run.wait()
        # Both the guard and the server hold the pipe: its end means that both are gone.
        assert guarded.stdout.read() == ""
        assert guarded.wait(30) == 0


def test_the_servers_of_npm_are_pinned_exactly() -> None:
    """A new clone installs the tested versions."""
    package = json.loads((ROOT / "tests" / "servers" / "package.json").read_text())
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in package["dependencies"].values())
