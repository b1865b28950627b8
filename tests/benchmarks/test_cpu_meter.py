"""The CPU time of processes that end while they are measured."""

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.processes import CpuMeter, tree_cpu_s

# A parent that does not wait for its child, as Spark's Python processes do: the kernel adds the child's time nowhere.
PROGRAM = """
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
code = "import time\\nwhile time.process_time() < 3: pass"
print(subprocess.Popen([sys.executable, "-c", code]).pid, flush=True)
sys.stdin.readline()
"""


def test_a_process_that_has_ended_keeps_its_kind() -> None:
    """Until its parent waits for it, it has no command in `/proc`."""
    code = "import time\nwhile time.process_time() < 1: pass\ntime.sleep(1)"
    with CpuMeter() as meter:
        ended = subprocess.Popen([sys.executable, "-c", code, "pyspark"])
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert meter.cpu_by_kind()["Python"] > 0.5
        ended.wait()
        assert meter.cpu_by_kind()["Python"] > 0.5


def test_a_process_that_nobody_waited_for_counts() -> None:
    """Most of what it used stays in the sum after its end."""
    with CpuMeter() as meter:
        before = sum(meter.cpu_by_kind().values())
        command = [sys.executable, "-c", PROGRAM]
        parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert parent.stdout is not None
            child, until = Path(f"/proc/{parent.stdout.readline().strip()}"), time.monotonic() + 120
            while child.exists():
                assert time.monotonic() < until
                time.sleep(0.1)
            assert sum(meter.cpu_by_kind().values()) - before > 1
            # Without the meter, it is in no sum.
            assert tree_cpu_s(parent.pid) < 1
        finally:
            parent.kill()
            parent.communicate()
