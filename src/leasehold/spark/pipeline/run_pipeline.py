"""Runs a pipeline: starts its query, reports its progress, and stops it so that its leases are released.

The fleet member of a query runs in a process of Spark's. Spark ends this process with the query, and the member then
releases its leases. Spark does not wait for that; this module does.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from leasehold.errors import ConfigError, QueryFailedError
from leasehold.spark.archive_sink import NAME as ARCHIVE
from leasehold.spark.decoding.decode_settings import Decode
from leasehold.spark.decoding.payload_column import ERROR as DECODE_ERROR
from leasehold.spark.decoding.payload_column import RECORD, PayloadFormat, decode_column, result_type
from leasehold.spark.pipeline.pipeline_file import Pipeline, Sink, SinkKind
from leasehold.spark.pipeline.processes import children
from leasehold.spark.pipeline.progress import OBSERVED, BatchProgress, failure_reason, progress_from_json
from leasehold.spark.pipeline.session import jvm_process
from leasehold.spark.query.batch_load import BatchEndFile, batch_end_file
from leasehold.spark.source import FORMAT

RELEASE_SECONDS: Final = 30.0
BATCH_END_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.25
_BATCH_POLL_SECONDS: Final = 0.02  # the pause between two batches may be short
_DECODED: Final = "_decoded"
_MALFORMED: Final = "_malformed"
_READER: Final = "pyspark.sql.streaming.python_streaming_source_runner"

# For each table format that needs a jar: a class to detect it, and the package that provides it.
_JARS: Final = {
    SinkKind.DELTA: ("io.delta.sql.DeltaSparkSessionExtension", "io.delta:delta-spark_SPARK_2.13:VERSION"),
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
    """The Spark settings of a pipeline: those that its sink needs, overridden by those of the user."""
    needed = _DELTA_SETTINGS if pipeline.sink.kind is SinkKind.DELTA else {}
    return {**needed, **pipeline.spark}


def start_query(spark: Any, pipeline: Pipeline) -> Any:
    """Start the query of a pipeline in a session. Raises QueryFailedError if Spark refuses it."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # noqa: PLC0415 - comes with pyspark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    _require_jars(spark, pipeline.sink.kind)
    try:
        return _start(spark, pipeline)
    except (PySparkException, Py4JJavaError) as error:
        raise QueryFailedError(failure_reason(str(error))) from error


def _start(spark: Any, pipeline: Pipeline) -> Any:
    # Spark finds source and archive by name (see pyspark_leasehold). Registering them again would only cost time.
    frame = spark.readStream.format(FORMAT).options(**pipeline.source).load()
    rows = _transform(spark, decode_payloads(_observe_bytes(frame), pipeline.decode), pipeline.sql)
    writer = _writer(rows, pipeline.sink).queryName(pipeline.name)
    writer = writer.option("checkpointLocation", pipeline.checkpoint).trigger(**_trigger(pipeline))
    return writer.toTable(pipeline.sink.table) if pipeline.sink.table else writer.start()


def _observe_bytes(frame: Any) -> Any:
    """Return the same rows, and let Spark sum up their bytes."""
    from pyspark.sql import functions  # noqa: PLC0415 - an extra

    if "data" not in frame.columns:
        return frame
    return frame.observe(OBSERVED, functions.sum(functions.octet_length("data")).alias("bytes"))


def decode_payloads(frame: Any, decode: Decode | None) -> Any:
    """Add the columns `record`, the decoded payload, and `decodeError`, which has a value if it cannot be decoded."""
    if decode is None:
        return frame
    if "data" not in frame.columns:
        raise ConfigError("[transform] decode needs the column data: add it to columns below [source]")
    if decode.payloads is None:
        return _decode_json(frame, decode)
    return _decode_in_python(frame, decode.payloads)


def _decode_in_python(frame: Any, payloads: PayloadFormat) -> Any:
    """Decode payloads in Python. Rows stay in their tasks and in their order, as the archive needs them."""
    from pyspark.sql import functions  # noqa: PLC0415 - an extra
    from pyspark.sql.pandas.functions import arrow_udf  # noqa: PLC0415
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415

    def decode(column: pa.Array) -> pa.Array:
        return decode_column(column, payloads)

    make: Any = (
        arrow_udf  # its stubs know only calls with a number for the kind, which Spark derives from the types
    )
    decoder = make(decode, from_arrow_type(result_type(payloads)))
    decoded = frame.withColumn(_DECODED, decoder(functions.col("data")))
    for name in (RECORD, DECODE_ERROR):
        decoded = decoded.withColumn(name, functions.col(f"{_DECODED}.{name}"))
    return decoded.drop(_DECODED)


def _decode_json(frame: Any, decode: Decode) -> Any:
    """Decode payloads that are one JSON object each.

    Spark ends at the end of a JSON value, whatever follows it. So it gets the payload as a member of an object with
    another member behind it. With anything behind the value in the payload, the object does not have exactly these two
    members: their names are random, so no payload has them.
    """
    from pyspark.sql import functions  # noqa: PLC0415 - an extra
    from pyspark.sql.types import StructType  # noqa: PLC0415

    record, end = f"record_{secrets.token_hex(16)}", f"end_{secrets.token_hex(16)}"
    text = functions.col("data").cast("string")
    whole = functions.concat(functions.lit(f'{{"{record}":'), text, functions.lit(f',"{end}":0}}'))
    schema = StructType().add(record, StructType.fromDDL(decode.schema)).add(_MALFORMED, "string")
    parsed = functions.from_json(whole, schema, {"columnNameOfCorruptRecord": _MALFORMED})
    members = functions.array(functions.lit(record), functions.lit(end))
    is_right = (
        functions.is_valid_utf8(text)
        & (functions.json_object_keys(whole) == members)
        & functions.col(f"{_DECODED}.{_MALFORMED}").isNull()
        & functions.col(f"{_DECODED}.{record}").isNotNull()
    )
    return (
        frame.withColumn(_DECODED, parsed)
        .withColumn(RECORD, functions.when(is_right, functions.col(f"{_DECODED}.{record}")))
        .withColumn(
            DECODE_ERROR,
            functions.when(functions.col(RECORD).isNull(), "the payload is not JSON of the schema"),
        )
        .drop(_DECODED)
    )


def _transform(spark: Any, frame: Any, sql: str | None) -> Any:
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


def _require_jars(spark: Any, kind: SinkKind) -> None:
    if kind not in _JARS:
        return
    class_name, package = _JARS[kind]
    try:
        spark._jvm.org.apache.spark.util.Utils.classForName(class_name, True, False)  # noqa: SLF001 - py4j's way in
    except Exception as error:
        raise ConfigError(
            f"[sink] kind = {kind.value!r}: Spark does not have it; add its jar, for example below [spark] "
            f"jars.packages = {package!r} with the versions for Spark {spark.version}"
        ) from error


def watch_query(
    query: Any,
    report: Callable[[BatchProgress], None],
    is_stopping: Callable[[], bool],
    show_step: Callable[[str], None] = lambda _step: None,
) -> None:
    """Report every batch of a query until it ends or `is_stopping` returns True. Then stop it, and show each step.

    When this returns, the query has stopped and its leases are released. Raises QueryFailedError if the query failed.
    """
    jvm = jvm_process()
    ends = batch_end_file(jvm.pid) if jvm else None
    reports = _ProgressReports(query, ends)
    while query.isActive and not is_stopping():
        time.sleep(_POLL_SECONDS)
        reports.pass_on(report)
    show_step(f"the current batch may end, for up to {BATCH_END_SECONDS:.0f} s")
    _wait_between_batches(query)
    reports.pass_on(report)
    show_step("the query ends")
    query.stop()
    reports.pass_on(report)
    show_step("waiting until the leases are free")
    wait_for_release()
    if ends is not None:
        ends.delete()
    failure = query.exception()
    if failure is not None and not is_stopping():
        raise QueryFailedError(failure_reason(str(failure)))


def _wait_between_batches(query: Any) -> None:
    """Wait a moment for the end of the current batch: an interrupted batch is repeated."""
    until = time.monotonic() + BATCH_END_SECONDS
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
        time.sleep(_BATCH_POLL_SECONDS)


class _ProgressReports:
    """Passes on each progress report of a query once. Spark keeps the last hundred.

    Also records the end of each batch for the query's member: the pause between two batches is not load, and the next
    owner of its leases must not repeat a committed batch.
    """

    def __init__(self, query: Any, ends: BatchEndFile | None) -> None:
        self._query = query
        self._ends = ends
        self._seen = ""  # the timestamp of the last report

    def pass_on(self, report: Callable[[BatchProgress], None]) -> None:
        last = self._query.lastProgress
        if last is None or last.timestamp <= self._seen:
            return
        for each in self._query.recentProgress:
            if each.timestamp > self._seen:
                self._seen = each.timestamp
                progress = progress_from_json(each.json)
                if self._ends and progress.ended_ms is not None and progress.committed is not None:
                    self._ends.record(progress.ended_ms, progress.committed)
                report(progress)


def wait_for_release(patience_s: float = RELEASE_SECONDS) -> bool:
    """Wait until no reader process of the JVM's queries is left. Then all leases are released."""
    jvm = jvm_process()
    until = time.monotonic() + patience_s
    while jvm is not None and _has_reader(jvm.pid):
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _has_reader(parent: int) -> bool:
    return any(_READER in child.command for child in children(parent))
