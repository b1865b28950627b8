"""Starting and watching the query of a pipeline, with fake queries."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.exactly_once.query_offset import QueryOffset
from leasehold.errors import ConfigError, QueryFailedError
from leasehold.spark.pipeline import run_pipeline as module
from leasehold.spark.pipeline.pipeline_file import Pipeline, Sink, SinkKind
from leasehold.spark.pipeline.progress import BatchProgress
from leasehold.spark.pipeline.run_pipeline import spark_settings, start_query, watch_query
from leasehold.spark.query.batch_load import BatchEndFile

QUERY_ID = "00c0ffee"
SOURCE = {"streamName": "orders", "applicationName": "billing"}


def _pipeline(sink: Sink, **spark: str) -> Pipeline:
    return Pipeline(name="p", checkpoint="c", source=SOURCE, sink=sink, spark=spark)


def test_the_settings_of_a_sink_are_added() -> None:
    """The settings of the user take precedence."""
    delta = Sink(kind=SinkKind.DELTA, path="out")
    assert "spark.sql.extensions" in spark_settings(_pipeline(delta))
    theirs = {"spark.sql.extensions": "theirs"}
    assert spark_settings(_pipeline(delta, **theirs))["spark.sql.extensions"] == "theirs"
    assert spark_settings(_pipeline(Sink(kind=SinkKind.CONSOLE))) == {}


@pytest.mark.parametrize(
    ("sink", "jar"),
    [
        (Sink(kind=SinkKind.DELTA, path="out"), "io.delta:delta-spark"),
        (Sink(kind=SinkKind.ICEBERG, table="db.t"), "org.apache.iceberg:iceberg-spark-runtime"),
    ],
)
def test_a_table_format_without_its_jar_is_refused(sink: Sink, jar: str) -> None:
    """The error names the jar, and no query is started."""
    with pytest.raises(ConfigError, match=f"jars.packages = .*{jar}"):
        start_query(SimpleNamespace(version="4.3.0"), _pipeline(sink))


@dataclass
class FakeQuery:
    """A query that reports some batches and then ends, or runs until it is stopped."""

    polls: list[Sequence[Any]]  # the value of `recentProgress` at each poll
    runs_until_stop: bool = False
    failure: str | None = None
    ends_after: int = 0  # polls of its status until its batch has ended
    stops: int = 0
    recentProgress: Sequence[Any] = field(default=())  # noqa: N815 - Spark's name

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        if self.polls:
            self.recentProgress = self.polls.pop(0)
        return self.recentProgress[-1] if self.recentProgress else None

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return bool(self.polls) or (self.runs_until_stop and not self.stops)

    @property
    def status(self) -> dict[str, bool]:
        self.ends_after -= 1
        if self.ends_after == 0:
            self.polls = [[_progress(1)]]
        return {"isTriggerActive": self.ends_after > 0}

    def stop(self) -> None:
        self.stops += 1

    def exception(self) -> str | None:
        return self.failure


def _progress(batch: int) -> Any:
    report = {
        "batchId": batch,
        "timestamp": f"2026-11-16T00:00:0{batch}Z",
        "numInputRows": 1,
        "durationMs": {"triggerExecution": 500},
        "sources": [{"endOffset": QueryOffset(GenerationId(QUERY_ID, batch), {}).to_json()}],
    }
    return SimpleNamespace(timestamp=report["timestamp"], json=json.dumps(report))


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_SECONDS", 0)
    monkeypatch.setattr(module, "_BATCH_POLL_SECONDS", 0)


def test_every_batch_is_reported_once() -> None:
    """These include batches between two polls and the last batch."""
    reports = [_progress(number) for number in range(5)]
    query = FakeQuery([[], reports[:1], reports[:1], reports[:4], reports])
    reported: list[BatchProgress] = []
    watch_query(query, reported.append, lambda: False)
    assert [each.batch for each in reported] == [0, 1, 2, 3, 4]
    assert query.stops == 1


def test_the_end_of_a_batch_is_recorded_for_the_member(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The file is named after the JVM, and deleted at the end."""
    jvm = SimpleNamespace(pid=4711)
    ends = BatchEndFile(tmp_path / "batch-end")
    monkeypatch.setattr(module, "jvm_process", lambda: jvm)
    monkeypatch.setattr(module, "batch_end_file", lambda pid: ends if pid == jvm.pid else None)
    recorded: list[tuple[int | None, GenerationId | None]] = []
    query = FakeQuery([[_progress(1)], [_progress(2)]])
    watch_query(query, lambda _: recorded.append((ends.last_end_ms(), ends.last_committed())), lambda: False)
    assert recorded == [
        (1_794_787_201_500, GenerationId(QUERY_ID, 1)),
        (1_794_787_202_500, GenerationId(QUERY_ID, 2)),
    ]
    assert ends.last_end_ms() is None


def test_a_stop_waits_for_the_current_batch() -> None:
    """It also waits for the report, so that the next owner of the leases does not repeat the batch."""
    query = FakeQuery([], runs_until_stop=True, ends_after=3)
    reported: list[BatchProgress] = []
    watch_query(query, reported.append, lambda: True)
    assert [each.batch for each in reported] == [1]
    assert query.stops == 1


def test_a_query_is_stopped_on_request() -> None:
    """Its exception is not a failure then."""
    query = FakeQuery([], runs_until_stop=True, failure="interrupted")
    watch_query(query, lambda _: None, lambda: True)
    assert query.stops == 1


def test_a_failed_query_raises_an_error_with_its_reason() -> None:
    query = FakeQuery([], failure="[STREAM_FAILED] no more disk")
    with pytest.raises(QueryFailedError, match="no more disk"):
        watch_query(query, lambda _: None, lambda: False)
