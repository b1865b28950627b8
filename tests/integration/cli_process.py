"""Runs the `leasehold` command as users do: in its own process, with an environment without AWS settings."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 120


@dataclass(frozen=True, slots=True)
class CliResult:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    def lines(self) -> list[str]:
        """Return the printed lines without trailing spaces."""
        return [line.rstrip() for line in self.out.splitlines()]


def environment(home: Path) -> Mapping[str, str]:
    """Return the environment without credentials, region and configuration of the user who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LEASEHOLD_"))}
    return kept | {"HOME": str(home), "AWS_EC2_METADATA_DISABLED": "true", "COLUMNS": "80"}


def start_cli(*arguments: str, folder: Path, own_group: bool = False) -> "subprocess.Popen[str]":
    """Start a command in this folder, if asked in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "leasehold.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(folder),
        process_group=0 if own_group else None,
    )


def run_cli(*arguments: str, folder: Path) -> CliResult:
    """Run a command until it ends."""
    with start_cli(*arguments, folder=folder) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
        return CliResult(process.returncode, out, err)
