"""docs/observing.md documents every event, metric and setting for observing a member."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from leasehold.adapters.logs import LINES
from leasehold.adapters.prometheus import PrometheusMetrics
from leasehold.config.settings import MetricsLevel, ObserveSettings
from leasehold.core.events import Event, LeaseTaken
from leasehold.core.model import LeaseKey, ShardId, WorkerId
from leasehold.core.observing.metrics import MetricWindow
from leasehold.core.position import TRIM_HORIZON
from tests.sample_events import EVENT_TYPES, sample

PAGE = (Path(__file__).parents[2] / "docs" / "observing.md").read_text(encoding="utf-8")
SHARD = ShardId("shard-0")
ENDS = {"LeaseLost", "LeaseReleased", "ShardEnded", "MemberStopped"}
LIFE: list[Event] = [
    LeaseTaken(LeaseKey(SHARD), SHARD, None, None, 1, TRIM_HORIZON),
    *(sample(kind, shard=SHARD) for kind in EVENT_TYPES if kind.__name__ not in ENDS),
]


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_event_has_a_row(kind: type[Event]) -> None:
    """The row says when the event happens and how it is reported."""
    assert re.search(rf"^\|[^|]*`{kind.__name__}`", PAGE, re.MULTILINE)


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_row_names_the_log_level(kind: type[Event]) -> None:
    """The log column of the row names the level of the log line."""
    (row,) = re.findall(rf"^\|[^|]*`{kind.__name__}`.*$", PAGE, re.MULTILINE)
    level = {10: "DEBUG", 20: "INFO", 30: "WARNING", 40: "ERROR"}[LINES[kind].level]
    assert level in row.split("|")[3]


def test_every_cloudwatch_metric_is_named() -> None:
    """The page has names and dimensions, so a reader can define an alarm."""
    window = MetricWindow(MetricsLevel.DETAILED, WorkerId("w"))
    for event in LIFE:
        window.observe(event, 0)
    sets = window.close(0)
    assert len({each.name for each in sets}) > 20
    assert [each.name for each in sets if f"`{each.name}`" not in PAGE] == []
    operations = {value for each in sets for name, value in each.dimensions if name == "Operation"}
    assert [operation for operation in operations if f"Operation={operation}" not in PAGE] == []


def test_every_prometheus_metric_is_named() -> None:
    """A name appears with or without the common prefix."""
    metrics = PrometheusMetrics(lambda: 0)
    for event in LIFE:
        metrics(event)
    names = set(re.findall(r"^# TYPE leasehold_(\S+)", metrics.text().decode(), re.MULTILINE))
    assert len(names) > 20
    assert [name for name in names if not re.search(rf"`(leasehold_)?{name}`", PAGE)] == []


@pytest.mark.parametrize("name", [field.name for field in fields(ObserveSettings)])
def test_every_setting_has_a_row(name: str) -> None:
    """The table of settings is complete."""
    assert f"| `{name}` |" in PAGE
