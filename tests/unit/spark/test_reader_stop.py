"""However Spark ends the reader of a query, its leases are given back: in a process of its own, as Spark has it."""

import subprocess
import sys

import pytest

READER = """
import os, signal, time
from leasehold.spark import source
from leasehold.spark.options import source_options

def sigterm():
    os.kill(os.getpid(), signal.SIGTERM)

class PlayedDriver:
    has_begun = False
    def __init__(self, options): pass
    def read_available_now(self): pass
    def stop(self):
        if not self.has_begun:
            self.has_begun = True
            sigterm()
            time.sleep(0)  # a signal is handled between two steps
            print("given back")

source.QueryDriver = PlayedDriver
reader = source.KinesisStreamReader(source_options({"streamName": "s", "applicationName": "a"}))
reader.prepareForTriggerAvailableNow()
"""


@pytest.mark.parametrize("first", ["sigterm()", "reader.stop()"], ids=["signal", "closed connection"])
def test_neither_of_two_ways_to_end_disturbs_the_other(first: str) -> None:
    """Spark closes the connection and sends SIGTERM, twice; any of them may come while the leases are given back."""
    program = f"{READER}\ntry:\n    {first}\nfinally:\n    reader.stop()\n"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "given back\n", ended.stderr
