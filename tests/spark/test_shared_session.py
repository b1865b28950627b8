"""A failed test does not disturb the next ones: its queries end, and a JVM that does not work is replaced."""

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from pyspark import SparkContext

from tests.spark.shared_session import shared_session


class Interrupted(BaseException):
    """As a timeout of pytest, it is no `Exception`."""


def interrupt(*_: object) -> None:
    raise Interrupted


def test_queries_end_and_a_jvm_that_does_not_work_is_replaced(tmp_path: Path) -> None:
    """A test leaves a query behind, another is interrupted in a call to the JVM, and a third kills the JVM."""
    with shared_session("shared", {"spark.master": "local[1]"}, lambda _: None) as shared:
        session = shared.get()
        rows = session.readStream.format("rate").load()
        query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
        shared.stop_queries()
        assert not query.isActive
        assert shared.get() is session
        before = signal.signal(signal.SIGUSR1, interrupt)
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(Interrupted):
            session.sparkContext._jvm.java.lang.Thread.sleep(20_000)
        signal.signal(signal.SIGUSR1, before)
        shared.stop_queries()
        assert shared.get().range(2).count() == 2
        gateway = SparkContext._gateway
        assert gateway is not None
        jvm: subprocess.Popen[bytes] = gateway.proc
        os.kill(jvm.pid, signal.SIGKILL)
        jvm.wait()
        shared.stop_queries()
        assert shared.get().range(3).count() == 3
