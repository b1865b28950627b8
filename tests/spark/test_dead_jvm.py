"""Errors that are shown after the JVM of a session has ended."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from leasehold.errors import QueryFailedError
from leasehold.spark import session
from leasehold.spark.pipeline.session import jvm_process
try:
    with session("dead-jvm", {"spark.master": "local[1]"}) as spark:
        jvm_process().kill()
        spark.range(3).count()
except QueryFailedError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_killed_jvm_is_reported(tmp_path: Path) -> None:
    """The output contains neither a traceback of py4j nor one of stopping the session."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("Spark's JVM ended unexpectedly with exit code -9"), done.stderr[-3000:]
    assert done.returncode == 0


FAILING_PROGRAM = """
from leasehold.spark import session
with session("failing", {"spark.master": "local[1]"}) as spark:
    spark.sql("SELECT nothing").count()
"""


@pytest.mark.slow
def test_an_error_that_leaves_the_session_keeps_its_text(tmp_path: Path) -> None:
    """The text is in the JVM, which ends before Python prints the traceback."""
    done = subprocess.run(
        [sys.executable, "-c", FAILING_PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    *_, traceback = done.stderr.rpartition("Traceback")
    assert "[UNRESOLVED_COLUMN" in traceback, done.stderr[-3000:]
