"""Ctrl-C at a terminal is acknowledged at once, before the handlers have finished."""

import os
import subprocess
import sys

PROGRAM = """
import signal
from leasehold.worker.engine.engine_thread import stop_on_signals
with stop_on_signals(lambda: None):
    signal.raise_signal(signal.SIGINT)
"""


def test_a_request_to_stop_is_acknowledged_at_a_terminal() -> None:
    """Not elsewhere: what a program writes to its log is its own decision."""
    terminal, program_end = os.openpty()
    try:
        done = subprocess.run([sys.executable, "-c", PROGRAM], stderr=program_end, timeout=60, check=False)
        assert done.returncode == 0
        assert os.read(terminal, 1_000).startswith(b"stopping; a second Ctrl-C or SIGTERM")
    finally:
        os.close(terminal)
        os.close(program_end)
    piped = subprocess.run([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, timeout=60, check=False)
    assert (piped.returncode, piped.stderr) == (0, b"")
