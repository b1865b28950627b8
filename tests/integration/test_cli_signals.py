"""Ctrl-C during long commands: the whole process group gets SIGINT, as at a terminal."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.cli_process import environment

DEADLINE_S = 120


def _children(process: int) -> list[str]:
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_simulate_stops_at_once_with_all_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    """While its processes still start, which is when a signal is most likely to interrupt an import."""
    with _start("simulate", "--seeds", "500", folder=tmp_path) as command:
        until = time.monotonic() + DEADLINE_S
        while len(children := _children(command.pid)) < 3:  # two processes, and a tracker of Python's
            assert time.monotonic() < until
            time.sleep(0.05)
        os.killpg(command.pid, number)
        out, err = command.communicate(timeout=DEADLINE_S)
    assert (command.returncode, err) == (128 + number, "")
    assert "of 500 seeds have run" in out
    assert not [each for each in children if _is_simulation(each)]


def _is_simulation(process: str) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def test_one_simulated_seed_stops_at_once(tmp_path: Path) -> None:
    with _start("simulate", "--seed", "3", "--minutes", "500", folder=tmp_path) as command:
        assert command.stdout is not None
        assert command.stdout.readline()
        os.killpg(command.pid, signal.SIGINT)
        _, err = command.communicate(timeout=DEADLINE_S)
    assert (command.returncode, err) == (128 + signal.SIGINT, "")


def _start(*arguments: str, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "leasehold.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(folder),
        start_new_session=True,
    )
