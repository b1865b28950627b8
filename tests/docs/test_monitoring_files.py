"""The dashboard and the alarms in deploy/monitoring use only metrics that exist."""

import json
import re
from pathlib import Path

from leasehold.config.settings import MetricsLevel
from leasehold.core.model import WorkerId
from leasehold.core.observing.metrics import MetricWindow
from leasehold.core.observing.series import FAMILIES, Kind
from tools.reference.metrics import running_events

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
SUFFIXES = {
    Kind.COUNTER: ("_total",),
    Kind.GAUGE: ("",),
    Kind.INFO: ("_info",),
    Kind.SUMMARY: ("_sum", "_count"),
}
SERIES = {f"{name}{suffix}" for name, (kind, _) in FAMILIES.items() for suffix in SUFFIXES[kind]}


def series_in(text: str) -> set[str]:
    return set(re.findall(r"\bleasehold_\w+", text))


def test_the_grafana_dashboard_shows_metrics_that_exist() -> None:
    """And each panel has a title and a place of its own."""
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = series_in(" ".join(queries))
    assert len(used) > 20
    assert used - SERIES == set()
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_prometheus_rules_use_metrics_that_exist() -> None:
    rules = (FOLDER / "prometheus-rules.yaml").read_text()
    expressions = re.findall(r"expr: (.*)", rules)
    assert len(expressions) == len(re.findall(r"- alert: Leasehold(\w+)", rules)) > 5
    assert series_in(" ".join(expressions)) - SERIES == set()
    for needed in ("Lag", "StalledShard", "RetentionNearlyReached", "NoLeader"):
        assert f"- alert: Leasehold{needed}\n" in rules


def test_the_cloudwatch_alarms_use_metrics_that_exist() -> None:
    """With the level `summary`: names and dimensions."""
    window = MetricWindow(MetricsLevel.SUMMARY, WorkerId("w"))
    for event in running_events():
        window.observe(event, 0)
    published = {(each.name, each.dimensions) for each in window.close(0)}
    alarms = json.loads((FOLDER / "cloudwatch-alarms.json").read_text())["Resources"]
    for needed in ("Lag", "StalledShard", "RetentionNearlyReached", "NoLeader"):
        assert needed in alarms
    for name, alarm in alarms.items():
        properties = alarm["Properties"]
        dimensions = tuple((each["Name"], each["Value"]) for each in properties.get("Dimensions", ()))
        assert (properties["MetricName"], dimensions) in published, name
