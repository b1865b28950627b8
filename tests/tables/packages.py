"""Resolves packages of Maven as `jars.packages` does for users, and compares their jars with recorded checksums.

After a change of a version, `python -m tests.tables.packages` fetches the jars and writes the checksums; look at what
has changed before you commit it.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

from tests.servers.install import SERVERS, exclusively

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
# Spark's notation: where Ivy stores what it has fetched.
IVY = SERVERS / "ivy"
CHECKSUMS = Path(__file__).resolve().parent / "checksums.sha256"
# Starting a session resolves the packages. Nothing in their jars is called.
RESOLVE = """
import sys
from leasehold.spark import session
settings = {"spark.master": "local[1]", "spark.jars.packages": sys.argv[1], "spark.jars.ivy": sys.argv[2]}
with session("resolve", settings):
    pass
"""
DEADLINE_S = 300


class UnreachableError(Exception):
    """The packages could not be fetched."""


def resolve(package: str) -> None:
    """Fetch a package and what it needs. Raises an error if a jar is not the recorded one."""
    _fetch(package)
    expected = CHECKSUMS.read_text().splitlines() if CHECKSUMS.exists() else []
    changed = set(_checksums()) ^ set(expected)
    assert not changed, f"jars in {IVY} are not those in {CHECKSUMS.name}: {sorted(changed)}"


def _fetch(package: str) -> None:
    with exclusively(SERVERS / ".lock-ivy"):
        try:
            done = subprocess.run(
                [sys.executable, "-c", RESOLVE, package, str(IVY)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=DEADLINE_S,
            )
        except subprocess.TimeoutExpired as error:
            raise UnreachableError(f"Maven Central did not answer within {DEADLINE_S} s") from error
    if done.returncode != 0:
        raise UnreachableError(f"Spark could not fetch {package}:\n{done.stdout[-1500:]}")


def _checksums() -> list[str]:
    """One line for each jar, as `sha256sum` writes it."""
    jars = sorted((IVY / "jars").glob("*.jar"))
    return [f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}" for jar in jars]


if __name__ == "__main__":
    _fetch(DELTA)
    CHECKSUMS.write_text("".join(f"{line}\n" for line in _checksums()))
