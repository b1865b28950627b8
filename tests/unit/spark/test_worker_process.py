"""What a Python process of Spark's prints and reports. Outside of such a process, nothing changes."""

import os
import sys

import pytest

from leasehold.errors import ConfigError
from leasehold.spark.worker_process import SentenceFirst, TracebackUnlessClosed, hide_closed_connections


def test_a_closed_connection_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Every other error is."""
    for error in (BrokenPipeError(), ValueError("a bug")):
        try:
            raise error
        except (BrokenPipeError, ValueError):
            TracebackUnlessClosed().print_exc()
    shown = capsys.readouterr().err
    assert "BrokenPipeError" not in shown
    assert "ValueError: a bug" in shown


def test_other_processes_are_not_changed() -> None:
    """A program may use the source in a process of its own, where its tracebacks are its own decision."""
    before = dict(os.environ), vars(sys.modules["__main__"]).get("traceback")
    hide_closed_connections()
    with pytest.raises(ConfigError), SentenceFirst():
        raise ConfigError("x")
    assert (dict(os.environ), vars(sys.modules["__main__"]).get("traceback")) == before
