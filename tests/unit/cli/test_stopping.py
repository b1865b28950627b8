"""Signals to a command that takes a while to stop. Some tests send them to this process, some to another one."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.cli.pipeline_display import Ticker
from leasehold.cli.stopping import STOPPING, StopRequest
from leasehold.spark.pipeline.processes import children
from tests.integration.cli_process import environment

TIMEOUT_S = 60

PROGRAM = """
import signal, subprocess, sys, time
from pathlib import Path
from leasehold.cli.stopping import StopRequest
from leasehold.spark.pipeline.start_up import cache_folder
import os
stop = StopRequest()
stop.end_start()
cache = cache_folder(os.environ)
cache.mkdir(parents=True)
(cache / f"classes-1.{os.getpid()}.part").touch()
(cache / "classes-1.jsa").touch()
child = subprocess.Popen(["sleep", "600"], process_group=0)
print(child.pid, flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    numbers = signal.SIGTERM, signal.SIGINT
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_a_request_interrupts_the_start() -> None:
    """Also if it was lost on the way, because other code has swallowed the exception."""
    stop = StopRequest()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert stop.was_requested
    with pytest.raises(KeyboardInterrupt):
        stop.end_start()


def test_a_request_is_acknowledged_at_once_and_counts_once() -> None:
    """`timeout` sends two signals for one request."""
    stop = StopRequest()
    stop.end_start()
    shown: list[str] = []
    with stop.announced_by(shown.append):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert stop.was_requested
    assert shown == [STOPPING]


def test_a_signal_skips_what_can_be_skipped() -> None:
    stop = StopRequest()
    stop.end_start()
    skipped: list[bool] = []
    stop.let_signals(lambda: skipped.append(True))
    signal.raise_signal(signal.SIGINT)
    assert skipped == [True]
    assert not stop.was_requested


def test_the_second_request_ends_all_processes_and_leaves_no_unfinished_file(tmp_path: Path) -> None:
    """Also processes in groups of their own, as Spark's JVM is."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=environment(tmp_path)
    ) as program:
        assert program.stdout is not None
        child = int(program.stdout.readline())
        program.send_signal(signal.SIGTERM)
        until = time.monotonic() + TIMEOUT_S
        while program.poll() is None and time.monotonic() < until:
            time.sleep(0.3)
            program.send_signal(signal.SIGTERM)
    assert program.returncode == 128 + signal.SIGTERM
    assert [each.name for each in (tmp_path / ".cache" / "leasehold").iterdir()] == ["classes-1.jsa"]
    while child in {each.pid for each in children(1)} and time.monotonic() < until:
        time.sleep(0.05)  # until it is reaped
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_ticker_repeats_what_it_waits_for_until_it_rests() -> None:
    """With the time, so that a long wait does not look like a hang."""
    shown: list[str] = []
    is_repeated = threading.Event()

    def show(text: str) -> None:
        shown.append(text)
        if text.endswith(" s)"):
            is_repeated.set()

    with Ticker(show, every_s=0.01) as ticker:
        assert not ticker.is_waiting
        ticker.wait_for("starting Spark")
        assert is_repeated.wait(TIMEOUT_S)
        ticker.rest()
        assert not ticker.is_waiting
    assert shown[0] == "starting Spark"
    assert re.fullmatch(r"starting Spark \(\d+ s\)", shown[1])
