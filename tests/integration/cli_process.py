"""The `leasehold` command as users run it: a process of its own, with an environment that knows nothing of AWS."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 120


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    def lines(self) -> list[str]:
        """What it printed, without the ends of lines."""
        return [line.rstrip() for line in self.out.splitlines()]


def environment(home: Path) -> Mapping[str, str]:
    """No credentials, no region, no configuration of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LEASEHOLD_"))}
    return kept | {"HOME": str(home), "AWS_EC2_METADATA_DISABLED": "true", "COLUMNS": "80"}


def start_cli(*arguments: str, folder: Path) -> "subprocess.Popen[str]":
    """A command that runs, in this folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "leasehold.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(folder),
    )


def cli(*arguments: str, folder: Path) -> Done:
    """A command from start to end."""
    with start_cli(*arguments, folder=folder) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
        return Done(process.returncode, out, err)
