"""Builds the Java member, one per version of the KCL, in `.servers/` inside the checkout.

Maven fetches the KCL from Maven Central, into a cache of our own, and compiles `tests/interop/java`. A stamp holds the
digest of the sources, so that a second run does nothing. Run as a program: `python -m tests.interop.build`.
"""

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.servers.install import SERVERS, exclusively, java

SOURCES = Path(__file__).resolve().parent / "java"
NEWEST = "3.5.1"  # leases, lock and reports in one table
THREE_TABLES = "3.4.2"  # the last on Maven Central that keeps lock and reports in tables of their own
VERSIONS = (NEWEST, THREE_TABLES)
# How Maven says that it could not fetch something.
UNREACHABLE = re.compile(
    "(?i)could not (resolve|transfer)|could not be resolved|could not find artifact|unknown host"
)
UNREACHABLE_CODE = 3
REMEDY = "run `make setup-interop` on a machine that has Maven and reaches Maven Central"


class BuildError(Exception):
    """The Java member could not be built, or is asked for and is not there."""


class UnreachableError(BuildError):
    """There is no Maven here, or Maven Central does not answer: nothing is wrong with the sources."""


def java_command(version: str, log: Path) -> list[str]:
    """How a member on this KCL is started; its options follow. The KCL's own log goes to a file."""
    home = SERVERS / f"kcl-{version}"
    if not _is_built(version):
        raise BuildError(f"the Java member on KCL {version} is not built in {home}: {REMEDY}")
    return [
        str(java()),
        # Several of them share two processors with everything else: quick to start, small.
        "-Xmx192m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Dorg.slf4j.simpleLogger.logFile={log}",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
        "-cp",
        f"{home / 'classes'}:{home / 'lib'}/*",
        "leasehold.interop.JavaMember",
    ]


def build_all() -> None:
    """Build what is missing; returns at once when nothing is."""
    with exclusively(SERVERS / ".lock-interop"):
        for version in VERSIONS:
            if not _is_built(version):
                _build(version)


def _is_built(version: str) -> bool:
    stamp = _stamp(version)
    return stamp.exists() and stamp.read_text() == _digest()


def _stamp(version: str) -> Path:
    return SERVERS / f"kcl-{version}.stamp"


def _digest() -> str:
    files = [path for path in sorted(SOURCES.rglob("*")) if path.is_file()]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def _build(version: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise UnreachableError("there is no `mvn` on this machine: install Maven 3.8 or newer and a JDK")
    print(f"interop: building the Java member on KCL {version} ...", flush=True)
    command = [
        maven,
        "--batch-mode",
        "--quiet",
        f"--file={SOURCES / 'pom.xml'}",
        f"-Dmaven.repo.local={SERVERS / 'maven'}",
        f"-Dbuilt.in={SERVERS / f'kcl-{version}'}",
        f"-Dkcl.version={version}",
        "process-classes",
    ]
    done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        kind = UnreachableError if UNREACHABLE.search(done.stdout) else BuildError
        raise kind(f"Maven gave {done.returncode} for KCL {version}:\n{done.stdout.strip()[-3000:]}")
    _stamp(version).write_text(_digest())


if __name__ == "__main__":
    try:
        build_all()
    except BuildError as error:
        print(f"interop: {error}", file=sys.stderr)
        sys.exit(UNREACHABLE_CODE if isinstance(error, UnreachableError) else 1)
