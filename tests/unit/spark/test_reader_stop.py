"""The reader of a query releases its leases however Spark ends it. Each test uses a process of its own, like Spark."""

import subprocess
import sys

import pytest

READER = """
import os, signal, time
from leasehold.spark import source
from leasehold.spark.options import source_options
from leasehold.spark.query import driver

def sigterm():
    os.kill(os.getpid(), signal.SIGTERM)

class FakeDriver:
    has_begun = False
    def __init__(self, options): pass
    def read_available_now(self): pass
    def stop(self):
        if not self.has_begun:
            self.has_begun = True
            sigterm()
            time.sleep(0)  # Python handles a signal between two byte codes
            print("released")

driver.QueryDriver = FakeDriver
reader = source.KinesisStreamReader(source_options({"streamName": "s", "applicationName": "a"}))
reader.prepareForTriggerAvailableNow()
"""


@pytest.mark.parametrize("first", ["sigterm()", "reader.stop()"], ids=["signal", "closed connection"])
def test_leases_are_released_although_spark_ends_the_reader_twice(first: str) -> None:
    """Spark closes the connection and sends SIGTERM twice. Each may arrive while the leases are released."""
    program = f"{READER}\ntry:\n    {first}\nfinally:\n    reader.stop()\n"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "released\n", ended.stderr
