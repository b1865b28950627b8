"""Resolves the packages of the test servers again: `requirements/*.lock` and the lock files of npm.

No lock file may name a registry: the project decides what to install, the machine decides from where.
"""

import subprocess
from pathlib import Path

from uv import find_uv_bin

ROOT = Path(__file__).resolve().parents[1]
SERVERS = ROOT / "tests" / "servers"
PARTS = ("java", "kclpy", "ministack", "node")
# Only the jars of kclpy-ext are used, so its Python dependencies are not installed.
WITHOUT_DEPENDENCIES = {"kclpy"}


def lock_from_pypi(part: str) -> None:
    options = ["--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
    options += ["--no-annotate", "--no-header", "--no-emit-index-url"]
    options += ["--no-deps"] if part in WITHOUT_DEPENDENCIES else []
    files = [f"requirements/{part}.in", "--output-file", f"requirements/{part}.lock"]
    subprocess.run([find_uv_bin(), "pip", "compile", *options, *files], cwd=ROOT, check=True)


def lock_from_npm() -> None:
    options = ["--package-lock-only", "--omit-lockfile-registry-resolved=true", "--no-audit", "--no-fund"]
    for folder in (SERVERS, SERVERS / "kcl_clients"):
        subprocess.run(["npm", "install", *options], cwd=folder, check=True)


if __name__ == "__main__":
    for name in PARTS:
        lock_from_pypi(name)
    lock_from_npm()
