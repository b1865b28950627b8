"""How the logs of Java members are read."""

from pathlib import Path

import pytest

from tests.interop.java_log import complaints

pytestmark = pytest.mark.core

LOG = """\
02:16:40.001 [main] INFO software.amazon.kinesis.coordinator.Scheduler - Starting
02:16:41.002 [main] WARN software.amazon.kinesis.worker.Selector - Did not find an operating range metadata provider.
02:16:47.595 [main] ERROR software.amazon.kinesis.coordinator.Scheduler - Worker.run caught exception, sleeping
java.lang.IllegalStateException: LeaderDecider uninitialized
\tat software.amazon.kinesis.leader.MigrationAdaptiveLeaderDecider.isLeader(MigrationAdaptiveLeaderDecider.java:49)
"""
FAULT = """\
02:17:00.100 [lam-thread] ERROR software.amazon.kinesis.leases.Serializer - Lease could not be read
java.lang.NumberFormatException: For input string: "x"
"""


def test_warnings_of_the_kcl_about_itself_are_ignored(tmp_path: Path) -> None:
    """Harmless warnings are ignored, also if only their cause identifies them."""
    (tmp_path / "java-1.kcl.log").write_text(LOG)
    assert complaints(tmp_path) == []


def test_any_other_error_is_reported(tmp_path: Path) -> None:
    """Any other error fails a test, and is reported with its cause."""
    (tmp_path / "java-1.kcl.log").write_text(LOG + FAULT)
    (complaint,) = complaints(tmp_path)
    assert "Lease could not be read" in complaint
    assert "NumberFormatException" in complaint
