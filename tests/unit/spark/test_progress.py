"""Parsing of Spark's progress reports and error messages."""

import json
from typing import Any

from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.exactly_once.query_offset import INITIAL_OFFSET, QueryOffset
from leasehold.spark.pipeline.progress import BatchProgress, failure_reason, progress_from_json

GENERATION = GenerationId("00c0ffee", 8)
REPORT: dict[str, Any] = {
    "batchId": 7,
    "timestamp": "2026-11-16T04:00:00.160Z",
    "numInputRows": 120,
    "durationMs": {"triggerExecution": 840, "addBatch": 600},
    "observedMetrics": {"leasehold": {"bytes": 5000}},
    "sources": [
        {
            "latestOffset": {
                "shards": {"s-0": {"millisBehind": 1500}, "s-1": {"millisBehind": None}},
                "recordsRead": 1,
            },
            "endOffset": QueryOffset(GENERATION, {}).to_json(),
        }
    ],
}


def test_a_progress_report_is_parsed() -> None:
    """Records, bytes, duration, the lag of each shard, the end time and the committed generation."""
    progress = progress_from_json(json.dumps(REPORT))
    assert progress == BatchProgress(
        7, 120, 5000, 840, {"s-0": 1500, "s-1": None}, 1_794_801_601_000, GENERATION
    )
    assert progress.max_behind_ms == 1500


def test_a_progress_report_may_lack_values() -> None:
    """An idle query has no metrics, and the source may not have reported yet."""
    report = {
        "batchId": 0,
        "sources": [{"latestOffset": None, "endOffset": INITIAL_OFFSET}],
        "observedMetrics": {"leasehold": {"bytes": None}},
    }
    progress = progress_from_json(json.dumps(report))
    assert progress == BatchProgress(0, 0, 0, 0, {})
    assert progress.max_behind_ms is None


def test_a_batch_that_spark_has_taken_from_its_log_is_repeated() -> None:
    """Spark does not ask the source how far the stream reaches, so the report has no latest offset."""
    source = {**REPORT["sources"][0], "latestOffset": None}
    assert progress_from_json(json.dumps({**REPORT, "sources": [source]})).is_repeated
    assert not progress_from_json(json.dumps({**REPORT, "sources": [source], "numInputRows": 0})).is_repeated


def test_the_reason_of_a_failure_is_the_error_of_this_library() -> None:
    """It does not contain the stack trace."""
    text = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_EXCEPTION] Traceback
  File "member.py", line 1
leasehold.errors.NotFoundError: stream orders does not exist: create it
\tat org.apache.spark.Runner
SQLSTATE: 38000"""
    assert failure_reason(text) == "stream orders does not exist: create it"


def test_a_jar_for_another_spark_is_named_as_the_reason() -> None:
    """Spark's own message is the signature of a method, or begins with the call of py4j."""
    text = """An error occurred while calling o66.toTable.
: java.lang.IncompatibleClassChangeError: class SparkView can not implement View, because it is not an interface
\tat java.base/java.lang.ClassLoader.defineClass1(Native Method)
"""
    assert failure_reason(text) == (
        "a jar was built for another version of Spark; use the one for yours "
        "(class SparkView can not implement View, because it is not an interface)"
    )
