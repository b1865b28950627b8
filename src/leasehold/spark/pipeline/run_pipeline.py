"""Runs a pipeline: starts its query, tells how it goes, and stops it so that its leases are free.

The fleet member of a query lives in a process of Spark's, which is told to end with the query and gives its leases
back then. Spark does not wait for that; here we do.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from leasehold.errors import ConfigError, QueryFailedError
from leasehold.spark.archive_sink import NAME as ARCHIVE
from leasehold.spark.pipeline.pipeline_file import Pipeline, Sink, SinkKind
from leasehold.spark.pipeline.progress import OBSERVED, BatchProgress, failure_reason, progress_from_json
from leasehold.spark.pipeline.session import jvm_process
from leasehold.spark.query.batch_load import BatchEndFile, batch_end_file
from leasehold.spark.source import FORMAT

RELEASE_SECONDS: Final = 30.0
BATCH_END_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.25
_BATCH_LOOK_SECONDS: Final = 0.02  # the pause between two batches may be short
_READER: Final = "pyspark.sql.streaming.python_streaming_source_runner"

# Of table formats that come as jars: a class to know them by, how to get them, and what they want of a session.
_JARS: Final = {
    SinkKind.DELTA: ("io.delta.sql.DeltaSparkSessionExtension", "io.delta:delta-spark_2.13:VERSION"),
    SinkKind.ICEBERG: (
        "org.apache.iceberg.spark.source.IcebergSource",
        "org.apache.iceberg:iceberg-spark-runtime-SPARK_2.13:VERSION",
    ),
}
_DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def spark_settings(pipeline: Pipeline) -> dict[str, str]:
    """What the session of a pipeline is told: what its sink needs, under what the user says."""
    needed = _DELTA_SETTINGS if pipeline.sink.kind is SinkKind.DELTA else {}
    return {**needed, **pipeline.spark}


def start_query(spark: Any, pipeline: Pipeline) -> Any:
    """Start the query of a pipeline in a session. QueryFailedError if Spark refuses it."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    _need_jars(spark, pipeline.sink.kind)
    try:
        return _started(spark, pipeline)
    except PySparkException as error:
        raise QueryFailedError(failure_reason(str(error))) from error


def _started(spark: Any, pipeline: Pipeline) -> Any:
    # Spark finds source and archive by name, see pyspark_leasehold; to register them again would only cost time.
    frame = spark.readStream.format(FORMAT).options(**pipeline.source).load()
    rows = _transformed(spark, _counted(frame), pipeline.sql)
    writer = _writer(rows, pipeline.sink).queryName(pipeline.name)
    writer = writer.option("checkpointLocation", pipeline.checkpoint).trigger(**_trigger(pipeline))
    return writer.toTable(pipeline.sink.table) if pipeline.sink.table else writer.start()


def _counted(frame: Any) -> Any:
    """The same rows; their bytes are summed on the way."""
    from pyspark.sql import functions  # noqa: PLC0415 - an extra

    if "data" not in frame.columns:
        return frame
    return frame.observe(OBSERVED, functions.sum(functions.octet_length("data")).alias("bytes"))


def _transformed(spark: Any, frame: Any, sql: str | None) -> Any:
    if sql is None:
        return frame
    frame.createOrReplaceTempView("records")
    return spark.sql(sql)


def _writer(rows: Any, sink: Sink) -> Any:
    name = ARCHIVE if sink.kind is SinkKind.ARCHIVE else sink.kind.value
    writer = rows.writeStream.format(name).outputMode("append").options(**sink.options)
    if sink.path:
        writer = writer.option("path", sink.path)
    return writer.partitionBy(*sink.partition_by) if sink.partition_by else writer


def _trigger(pipeline: Pipeline) -> dict[str, Any]:
    pause = pipeline.trigger.processing_time
    if pause is not None:
        return {"processingTime": f"{round(pause.total_seconds() * 1000)} milliseconds"}
    return {"once": True} if pipeline.trigger.once else {"availableNow": True}


def _need_jars(spark: Any, kind: SinkKind) -> None:
    if kind not in _JARS:
        return
    known_by, package = _JARS[kind]
    try:
        spark._jvm.org.apache.spark.util.Utils.classForName(known_by, True, False)  # noqa: SLF001 - py4j's way in
    except Exception as error:
        raise ConfigError(
            f"[sink] kind = {kind.value!r}: Spark does not know it; add its jar, for example below [spark] "
            f"jars.packages = {package!r} with the versions that fit Spark {spark.version}"
        ) from error


def watch_query(query: Any, tell: Callable[[BatchProgress], None], is_stopping: Callable[[], bool]) -> None:
    """Tell every batch of a query until it ends, is to be stopped, or fails: QueryFailedError.

    When this returns the query has stopped, and what it held is free.
    """
    jvm = jvm_process()
    ends = batch_end_file(jvm.pid) if jvm else None
    reports = _Reports(query, ends)
    while query.isActive and not is_stopping():
        time.sleep(_LOOK_SECONDS)
        reports.pass_on(tell)
    _wait_between_batches(query)
    reports.pass_on(tell)
    query.stop()
    reports.pass_on(tell)
    wait_for_release()
    if ends is not None:
        ends.delete()
    failure = query.exception()
    if failure is not None and not is_stopping():
        raise QueryFailedError(failure_reason(str(failure)))


def _wait_between_batches(query: Any) -> None:
    """A batch that is interrupted is repeated, so it is worth a moment."""
    until = time.monotonic() + BATCH_END_SECONDS
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
        time.sleep(_BATCH_LOOK_SECONDS)


class _Reports:
    """What a query has reported of its batches. Spark keeps the last hundred; each is passed on once.

    Its member hears of their ends: a pause between two batches is no work, and what is committed is not to be repeated
    by whoever gets its leases.
    """

    def __init__(self, query: Any, ends: BatchEndFile | None) -> None:
        self._query = query
        self._ends = ends
        self._seen = ""  # the time of the last one

    def pass_on(self, tell: Callable[[BatchProgress], None]) -> None:
        last = self._query.lastProgress
        if last is None or last.timestamp <= self._seen:
            return
        for each in self._query.recentProgress:
            if each.timestamp > self._seen:
                self._seen = each.timestamp
                progress = progress_from_json(each.json)
                if self._ends and progress.ended_ms is not None and progress.committed is not None:
                    self._ends.record(progress.ended_ms, progress.committed)
                tell(progress)


def wait_for_release(patience_s: float = RELEASE_SECONDS) -> bool:
    """Wait until no reader of our JVM's queries is left, which is when its leases are free."""
    jvm = jvm_process()
    until = time.monotonic() + patience_s
    while jvm is not None and _has_reader(jvm.pid):
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _has_reader(parent: int) -> bool:
    return any(_READER in command for command in _children(parent))


def _children(parent: int) -> Iterator[str]:
    """The command lines of the children of a process: from Linux, or from ps elsewhere."""
    if Path("/proc/self/stat").exists():
        for process in Path("/proc").glob("[0-9]*"):
            # The name, in parentheses, may hold anything; state and parent come after it.
            if _text_of(process / "stat").rpartition(")")[2].split()[1:2] == [str(parent)]:
                yield _text_of(process / "cmdline").replace("\0", " ")
        return
    listing = subprocess.run(
        ["ps", "-A", "-o", "ppid=,args="],  # noqa: S607 - where it is differs between systems
        capture_output=True,
        text=True,
        check=False,
    )
    for line in listing.stdout.splitlines():
        number, _, command = line.strip().partition(" ")
        if number == str(parent):
            yield command


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # it has ended meanwhile
