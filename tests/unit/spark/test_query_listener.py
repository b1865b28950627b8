"""The metrics of a Spark query, from its progress reports."""

import json
from dataclasses import dataclass
from typing import Any
from urllib.request import urlopen

import pytest

from leasehold.core.events import (
    BatchHandled,
    Event,
    FindingsReviewed,
    LeaseReleased,
    LeaseTaken,
    MemberStarted,
    MemberStopped,
    PageRead,
)
from leasehold.core.observing.series import MemberSeries
from leasehold.spark.dashboard_command import dashboard_command
from leasehold.spark.options import source_options
from leasehold.spark.query_events import QueryEvents

SHARD = "shardId-000000000000"
RUN = "r-1"


TRIMMED = {
    "shard": SHARD,
    "code": "position_trimmed",
    "severity": "problem",
    "text": "the record at its checkpoint is no longer retained",
    "remedy": "raise the retention",
}


def progress(shards: dict[str, Any] | None, *findings: Any) -> dict[str, Any]:
    """A report as Spark's JSON has it. None: of another source."""
    latest = {"shards": shards, "findings": list(findings)}
    source = {"description": "rate"} if shards is None else {"latestOffset": latest}
    return {
        "id": "q-1",
        "runId": RUN,
        "name": "copy",
        "numInputRows": 7,
        "durationMs": {"triggerExecution": 800},
        "sources": [source],
    }


def shard(records: int, behind_ms: int | None) -> dict[str, Any]:
    return {"recordsRead": records, "bytesRead": 10 * records, "millisBehind": behind_ms}


def values(series: MemberSeries, now_ms: int) -> dict[str, float]:
    return {
        f"{family.name}{list(sample.labels) or ''}": sample.value
        for family in series.families(now_ms)
        for sample in family.samples
    }


def test_the_series_of_a_query_are_those_of_a_worker() -> None:
    query, series = QueryEvents(), MemberSeries()
    for at_ms, report in ((0, shard(5, 90_000)), (1_000, shard(12, 4_000)), (2_000, shard(12, 0))):
        for event in query.from_progress(progress({SHARD: report})):
            series.observe(event, at_ms)
    found = values(series, 2_000)
    assert found[f"leasehold_shard_records_handled['{SHARD}']"] == 12
    assert found[f"leasehold_shard_bytes_read['{SHARD}']"] == 120
    assert found[f"leasehold_shard_lag_seconds['{SHARD}']"] == 0
    assert found["leasehold_leases_held"] == 1
    # No report for a minute: the lag grows, as that of a stalled worker does.
    assert values(series, 62_000)[f"leasehold_shard_lag_seconds['{SHARD}']"] == 60


def test_a_shard_that_the_query_no_longer_has_disappears() -> None:
    query = QueryEvents()
    list(query.from_progress(progress({SHARD: shard(5, 0)})))
    events: list[Event] = list(query.from_progress(progress({})))
    assert [type(event) for event in events] == [LeaseReleased]
    assert [type(event) for event in query.end(RUN)] == [MemberStopped]


def test_shards_of_two_streams_have_series_of_their_own() -> None:
    """Both streams have a shard with this id."""
    query, series = QueryEvents(), MemberSeries()
    keys = [f"1:{stream}:17:{SHARD}" for stream in ("orders", "returns")]
    reports = {key: shard(records, 0) for key, records in zip(keys, (5, 7), strict=True)}
    for event in query.from_progress(progress(reports)):
        series.observe(event, 0)
    found = values(series, 0)
    handled = {
        name: value for name, value in found.items() if name.startswith("leasehold_shard_records_handled")
    }
    assert sorted(handled.values()) == [5, 7]
    assert found["leasehold_leases_held"] == 2
    events = list(query.from_progress(progress({keys[1]: reports[keys[1]]})))
    (released,) = (event for event in events if isinstance(event, LeaseReleased))
    assert (released.key, released.shard) == (keys[0], SHARD)


def test_a_query_of_another_source_has_no_events() -> None:
    query = QueryEvents()
    assert list(query.from_progress(progress(None))) == []
    assert list(query.end(RUN)) == []


def test_another_query_of_the_session_changes_nothing() -> None:
    """Neither its reports nor its end. After the end of the first query, the next one is followed."""
    query = QueryEvents()
    list(query.from_progress(progress({SHARD: shard(5, 0)})))
    other = progress({"shardId-000000000009": shard(1, 0)}) | {"id": "q-2", "runId": "r-2"}
    assert list(query.from_progress(other)) == []
    assert list(query.end("r-2")) == []
    assert [type(event) for event in query.end(RUN)] == [MemberStopped]
    events = list(query.from_progress(other))
    assert [type(event) for event in events] == [MemberStarted, LeaseTaken, PageRead, BatchHandled]


def test_the_time_of_a_batch_is_that_of_the_batch_that_had_its_records() -> None:
    """Spark asks for the records of a batch when it plans the next one."""
    query = QueryEvents()
    list(query.from_progress(progress({SHARD: shard(0, None)}) | {"durationMs": {"triggerExecution": 900}}))
    idle = {"numInputRows": 0, "durationMs": {"triggerExecution": 3}}
    events = list(query.from_progress(progress({SHARD: shard(5, 0)}) | idle))
    assert [event.time_ms for event in events if isinstance(event, BatchHandled)] == [900]


@dataclass
class Progress:
    json: str


@dataclass
class ProgressEvent:
    progress: Progress


@dataclass
class TerminatedEvent:
    runId: str  # noqa: N815 - Spark's name


def test_the_listener_serves_the_metrics() -> None:
    listeners = pytest.importorskip("leasehold.spark.query_listener")
    seen: list[Event] = []
    listener = listeners.QueryMetricsListener(seen.append, status_port=0)
    try:
        listener.onQueryProgress(ProgressEvent(Progress(json.dumps(progress({SHARD: shard(5, 2_000)})))))
        with urlopen(f"{listener.url}/metrics") as response:
            text = response.read().decode()
        assert f'leasehold_shard_lag_seconds{{shard="{SHARD}"}} 2.0' in text
        listener.onQueryTerminated(TerminatedEvent(RUN))
        assert isinstance(seen[-1], MemberStopped)
    finally:
        listener.close()


def test_the_listener_shows_the_findings_of_the_member() -> None:
    """In /health and as a metric, until they are over."""
    listeners = pytest.importorskip("leasehold.spark.query_listener")
    seen: list[Event] = []
    listener = listeners.QueryMetricsListener(seen.append, status_port=0)

    def report(*findings: Any) -> dict[str, Any]:
        listener.onQueryProgress(
            ProgressEvent(Progress(json.dumps(progress({SHARD: shard(5, 0)}, *findings))))
        )
        with urlopen(f"{listener.url}/health") as response:
            health: dict[str, Any] = json.load(response)
        return health

    try:
        assert report()["findings"] == []
        assert not any(isinstance(event, FindingsReviewed) for event in seen)
        found = report(TRIMMED, "no finding")
        assert (found["findings"], found["severity"]) == ([TRIMMED], "problem")
        with urlopen(f"{listener.url}/metrics") as response:
            text = response.read().decode()
        assert 'leasehold_findings{code="position_trimmed",severity="problem"} 1.0' in text
        assert report()["findings"] == []
        assert sum(isinstance(event, FindingsReviewed) for event in seen) == 2
    finally:
        listener.close()


def test_the_dashboard_command_finds_the_fleet() -> None:
    options = source_options(
        {
            "streamName": "orders",
            "applicationName": "billing app",
            "region": "eu-west-1",
            "leases": "sqlite:///l.db",
        }
    )
    assert dashboard_command(options) == (
        "leasehold dashboard --application 'billing app' --stream orders --leases sqlite:///l.db --region eu-west-1"
    )
