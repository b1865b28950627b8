"""The health and metrics of several worker processes as one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from leasehold.core.observing.merged_status import (
    START_MS_MAX,
    ProcessStatus,
    merge_health,
    merge_metrics,
    parse_health,
)

SHARD = {"ok": True, "lag_ms": 0}


def running(process: int, **report: Any) -> ProcessStatus:
    health = {"ok": True, "state": "running", "problems": [], "warnings": [], "shards": {}} | report
    return ProcessStatus(process, "running", 100 + process, 0, None, health)


def waiting(process: int) -> ProcessStatus:
    return ProcessStatus(process, "waiting", None, 3, "signal 9")


def test_all_processes_are_healthy() -> None:
    """The shards of all are listed, each with its process."""
    report = merge_health([running(0, shards={"shard-1": SHARD}), running(1, shards={"shard-2": SHARD})])
    assert report["ok"] is True
    assert report["state"] == "running"
    assert {shard: each["process"] for shard, each in report["shards"].items()} == {
        "shard-1": 0,
        "shard-2": 1,
    }


def test_a_problem_of_one_process_is_a_problem_of_all() -> None:
    """A problem of a shard begins with its name, which `leasehold explain` relies on."""
    unhealthy = running(
        1, ok=False, problems=["shard-2 has made no progress", "no heartbeat"], shards={"shard-2": SHARD}
    )
    report = merge_health([running(0), unhealthy])
    assert report["ok"] is False
    assert report["problems"] == ["shard-2 has made no progress", "process 1: no heartbeat"]


def test_the_findings_of_all_processes_are_listed() -> None:
    fails = {
        "shard": "shard-2",
        "code": "handler_fails",
        "severity": "problem",
        "text": "it failed",
        "remedy": None,
    }
    led = {"shard": None, "code": "no_leader", "severity": "notice", "text": "no leader", "remedy": None}
    report = merge_health([running(0, findings=[led]), running(1, findings=[fails, "no finding"])])
    assert report["severity"] == "problem"
    assert report["findings"] == [{**led, "text": "process 0: no leader"}, fails]


def test_a_process_that_waits_for_its_restart_is_a_warning_while_another_runs() -> None:
    """A restart of all would not help. Without any process it is a problem."""
    report = merge_health([running(0), waiting(1)])
    assert report["ok"] is True
    assert report["warnings"] == ["process 1 ended (signal 9) and waits for its restart"]
    alone = merge_health([waiting(0)])
    assert alone["ok"] is False
    assert alone["problems"] == ["no process runs"]
    assert alone["state"] == "waiting"


def test_a_process_that_does_not_respond_is_a_problem() -> None:
    """One that still starts is not."""
    silent = ProcessStatus(0, "running", 100, 0, None, None)
    starting = ProcessStatus(1, "starting", 101, 0, None, None)
    report = merge_health([silent, starting])
    assert report["problems"] == ["process 0 (pid 100) does not respond"]
    assert [each["ok"] for each in report["processes"]] == [None, None]


def test_a_start_that_hangs_is_a_problem_after_a_while() -> None:
    """With cause and remedy, and as a finding for `leasehold explain`."""
    started = ProcessStatus(1, "starting", 101, 0, None, age_ms=START_MS_MAX - 1)
    assert merge_health([running(0), started])["ok"] is True
    report = merge_health([running(0), replace(started, age_ms=START_MS_MAX)])
    assert report["ok"] is False
    (problem,) = report["problems"]
    assert problem.startswith("process 1 (pid 101) has not opened its connections 2 min 0 s after its start")
    (finding,) = report["findings"]
    assert (finding["code"], finding["severity"]) == ("process_start_hangs", "problem")
    assert "end pid 101, and it is started again" in finding["remedy"]


def test_a_response_that_is_no_report_counts_as_none() -> None:
    """The body of an error is text."""
    assert parse_health(None) is None
    assert parse_health("oops") is None
    assert parse_health("[1]") is None
    assert parse_health('{"ok": true}') == {"ok": True}


def metrics_of(shard: str) -> str:
    registry = CollectorRegistry()
    Gauge("lag", 'Lag "of" a shard.', ["shard"], registry=registry).labels(shard).set(1)
    Counter("pages", "Pages.", registry=registry).inc()
    Histogram("seconds", "Time.", ["shard"], registry=registry, buckets=[1]).labels(shard).observe(0.5)
    return generate_latest(registry).decode()


def samples(text: str) -> Mapping[str, set[tuple[str, frozenset[tuple[str, str]], float]]]:
    return {
        family.name: {
            (each.name, frozenset(each.labels.items()), each.value)
            for each in family.samples
            if not each.name.endswith("_created")
        }
        for family in text_string_to_metric_families(text)
    }


def test_merged_metrics_are_those_of_all_processes_with_a_label() -> None:
    """Prometheus' own parser reads them: each metric has one description, and its series are together."""
    texts = {0: metrics_of('a b{"}'), 1: metrics_of("c")}
    merged = merge_metrics(texts, [running(0), waiting(1)])
    found = samples(merged)
    for process, text in texts.items():
        for name, series in samples(text).items():
            labelled = {(each, labels | {("process", str(process))}, value) for each, labels, value in series}
            assert labelled <= found[name]
    assert found["leasehold_process_up"] == {
        ("leasehold_process_up", frozenset({("process", "0")}), 1),
        ("leasehold_process_up", frozenset({("process", "1")}), 0),
    }
    assert ("leasehold_process_restarts_total", frozenset({("process", "1")}), 3) in found[
        "leasehold_process_restarts"
    ]
    assert merged.count("# TYPE seconds histogram") == 1
