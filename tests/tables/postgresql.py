"""A PostgreSQL server on loopback, from the machine's own package, in a folder of its own."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fleet.worker_processes import wait_until

DEADLINE_S = 120
MISSING = "no tests with PostgreSQL: this machine has no server; install Debian's package `postgresql`"


def find_program(name: str) -> Path | None:
    """A program of PostgreSQL. Debian installs the server's programs outside of PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))
    return Path(found) if found else None


@contextmanager
def running_postgresql() -> Iterator[str]:
    """Run an empty server, and yield the URL of its database. It refuses to run as root, so root becomes a user."""
    import psycopg

    initdb, postgres = find_program("initdb"), find_program("postgres")
    assert initdb is not None
    assert postgres is not None
    folder = Path(tempfile.mkdtemp(prefix="leasehold-postgresql-"))
    user = _unprivileged_user()
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    identity = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    data, port = folder / "data", _free_port()
    create = [initdb, "--auth=trust", "--username=leasehold", "--no-sync", f"--pgdata={data}"]
    subprocess.run(create, check=True, cwd=folder, stdout=subprocess.DEVNULL, timeout=DEADLINE_S, **identity)  # type: ignore[call-overload]
    options = ["-h", "127.0.0.1", "-p", str(port), "-k", str(folder), "-F"]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [postgres, "-D", data, *options], cwd=folder, stdout=log, stderr=log, **identity
        )  # type: ignore[call-overload]
    url = f"postgresql://leasehold@127.0.0.1:{port}/postgres"

    def responds() -> bool:
        assert server.poll() is None, (folder / "server.log").read_text()
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        wait_until(responds, "PostgreSQL responds", DEADLINE_S)
        yield url
    finally:
        server.terminate()
        server.wait(DEADLINE_S)
        shutil.rmtree(folder)


def _unprivileged_user() -> pwd.struct_passwd | None:
    if os.getuid() != 0:
        return None
    names = {each.pw_name for each in pwd.getpwall()}
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
