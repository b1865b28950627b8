"""The CPU time of processes that end while they are measured."""

import subprocess
import sys
import time

from benchmarks.processes import CpuMeter, cpu_by_kind

# A parent that does not wait for its child, as Spark's Python processes do: the kernel adds the child's time nowhere.
PROGRAM = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
code = "import time; time.sleep(0.5)\\nwhile time.process_time() < 2: pass\\ntime.sleep(0.5)"
child = subprocess.Popen([sys.executable, "-c", code])
sys.stdin.readline()
"""


def test_a_process_that_nobody_waited_for_counts() -> None:
    """What it used stays in the sum after its end."""
    with CpuMeter() as meter:
        before, lost_before = sum(meter.cpu_by_kind().values()), cpu_by_kind().get("other", 0.0)
        parent = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE)
        try:
            until = time.monotonic() + 120
            while sum(meter.cpu_by_kind().values()) - before < 2 and time.monotonic() < until:
                time.sleep(0.1)
            while cpu_by_kind().get("other", 0.0) - lost_before >= 2 and time.monotonic() < until:
                time.sleep(0.1)  # until the child has ended
            assert sum(meter.cpu_by_kind().values()) - before >= 2
            assert time.monotonic() < until
        finally:
            parent.kill()
            parent.communicate()
