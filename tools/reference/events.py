"""The events of a member: what happened, its fields, its log line, and the metrics that it changes."""

import inspect
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Final

from leasehold.adapters.logs import LINES, OTHER_LEVELS, first_line_delay_ms
from leasehold.config.settings import MetricsLevel
from leasehold.core.events import (
    Event,
    FindingsReviewed,
    LeadershipTaken,
    LeaseTaken,
    MemberStarted,
    OperationFailed,
    ProcessorCalled,
)
from leasehold.core.finding import Finding, Severity
from leasehold.core.model import ShardId, WorkerId
from leasehold.core.observing.metrics import MetricWindow, metric_points
from leasehold.core.observing.series import Kind, MemberSeries
from tests.sample_events import EVENT_TYPES, sample
from tools.reference.tables import code_list, markdown_table

_SHARD: Final = ShardId("shard-0")
_WORKER: Final = WorkerId("w")
_SUFFIXES: Final = {Kind.COUNTER: "_total", Kind.INFO: "_info"}


def table() -> str:
    """All events, in the order of the code."""
    return markdown_table(
        ("event", "what happened, and its fields", "log", "CloudWatch", "Prometheus `leasehold_...`"), _rows()
    )


def _rows() -> Iterator[tuple[str, ...]]:
    for kind in EVENT_TYPES:
        yield (
            f"`{kind.__name__}`",
            f"{inspect.getdoc(kind)} {_field_text(kind)}",
            _log_text(kind),
            code_list(_cloudwatch_names(kind)),
            code_list(_prometheus_names(kind)),
        )


def _field_text(kind: type[Event]) -> str:
    names = [field.name for field in fields(kind)]
    return f"({code_list(names)})" if names else ""


def _log_text(kind: type[Event]) -> str:
    line, other, delay_ms = LINES[kind], OTHER_LEVELS.get(kind), first_line_delay_ms(kind)
    words = re.split(r",? \w+=%s", line.template)[0]
    text = f"{logging.getLevelName(line.level)} `{words}`"
    if delay_ms:
        text += f", after {delay_ms // 1000} s"
    return text if other is None else f"{text}; {logging.getLevelName(other.level)} {other.text}"


def _earlier(kind: type[Event]) -> list[Event]:
    """The life of a member before the event."""
    kinds = (MemberStarted, LeaseTaken, LeadershipTaken)
    earlier = [sample(each, shard=_SHARD) for each in kinds if each is not kind]
    return [] if kind is MemberStarted else earlier


def _samples(kind: type[Event]) -> list[Event]:
    """One event, or several if the metrics depend on its values."""
    if kind is OperationFailed:
        return [OperationFailed(operation, "text") for operation in ("refresh", "audit")]
    if kind is ProcessorCalled:
        return [sample(kind, shard=_SHARD, method=method) for method in ("initialize", "lease_lost")]
    if kind is FindingsReviewed:
        codes = ("no_progress", "retention_nearly_reached")
        return [
            FindingsReviewed(
                tuple(Finding(code=code, severity=Severity.PROBLEM, text="text") for code in codes)
            )
        ]
    return [sample(kind, shard=_SHARD)]


def _cloudwatch_names(kind: type[Event]) -> Iterable[str]:
    events = _samples(kind)
    direct = [point.name for event in events for point in metric_points(event, _WORKER)]
    before, after = _states(_earlier(kind)), _states([*_earlier(kind), *events])
    changed = [name for name, value in after.items() if value != before.get(name, 0)]
    return dict.fromkeys([*direct, *changed])


def _states(events: Iterable[Event]) -> dict[str, int]:
    """What a window samples when it is closed."""
    window = MetricWindow(MetricsLevel.SUMMARY, _WORKER)
    for event in events:
        window.observe(event, 0)
    direct = {point.name for event in events for point in metric_points(event, _WORKER)}
    return {each.name: each.total for each in window.close(0) if each.name not in direct}


def _prometheus_names(kind: type[Event]) -> list[str]:
    before, after = _series(_earlier(kind)), _series([*_earlier(kind), *_samples(kind)])
    return [
        name
        for name, values in after.items()
        if any(before.get(name, {}).get(key, 0) != value for key, value in values.items())
    ]


def _series(events: Iterable[Event]) -> dict[str, dict[tuple[str, ...], float]]:
    series = MemberSeries()
    for event in events:
        series.observe(event, 0)
    return {
        family.name.removeprefix("leasehold_") + _SUFFIXES.get(family.kind, ""): {
            each.labels: each.value for each in family.samples
        }
        for family in series.families(0)
    }
