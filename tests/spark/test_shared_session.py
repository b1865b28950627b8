"""A failed test does not disturb the next ones: its queries end, and a dead JVM is replaced."""

import os
import signal
import subprocess
from pathlib import Path

from pyspark import SparkContext

from tests.spark.shared_session import shared_session


def test_queries_end_and_a_dead_jvm_is_replaced(tmp_path: Path) -> None:
    """A test leaves a query behind, and another kills the JVM."""
    with shared_session("shared", {"spark.master": "local[1]"}, lambda _: None) as shared:
        session = shared.get()
        rows = session.readStream.format("rate").load()
        query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
        shared.stop_queries()
        assert not query.isActive
        assert shared.get() is session
        gateway = SparkContext._gateway
        assert gateway is not None
        jvm: subprocess.Popen[bytes] = gateway.proc
        os.kill(jvm.pid, signal.SIGKILL)
        jvm.wait()
        shared.stop_queries()
        assert shared.get().range(3).count() == 3
