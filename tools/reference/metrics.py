"""The metrics of a member: those of Prometheus and OpenTelemetry, and those of CloudWatch."""

from collections.abc import Iterator
from typing import Final

from leasehold.config.settings import MetricsLevel
from leasehold.core.events import Event, LeaseTaken, OperationFailed, ProcessorCalled
from leasehold.core.model import ShardId, WorkerId
from leasehold.core.observing.metrics import METRIC_TEXTS, MetricWindow
from leasehold.core.observing.series import FAMILIES, Kind, MemberSeries
from tests.sample_events import EVENT_TYPES, sample
from tools.reference.tables import code_list, markdown_table

_SHARD: Final = ShardId("shard-0")
_ENDS: Final = frozenset({"LeaseLost", "LeaseReleased", "ShardEnded", "MemberStopped", "LeadershipEnded"})


def running_events() -> list[Event]:
    """Every event that ends nothing, of a member that has one shard."""
    kinds = sorted(EVENT_TYPES, key=lambda kind: kind is not LeaseTaken)
    events = [sample(kind, shard=_SHARD) for kind in kinds if kind.__name__ not in _ENDS]
    calls = [ProcessorCalled(_SHARD, method, 7) for method in ("initialize", "shard_ended")]
    return [*events, *calls, OperationFailed("audit", "text"), OperationFailed("refresh", "text")]


def prometheus_table() -> str:
    """All metrics of Prometheus and OpenTelemetry."""
    series = MemberSeries()
    for event in running_events():
        series.observe(event, 0)
    labels = {family.name: family.label_names for family in series.families(0)}
    rows = (
        (f"`{name}{_suffix(kind)}`", kind.value, _unit(name), code_list(labels[name]), text)
        for name, (kind, text) in FAMILIES.items()
    )
    return markdown_table(("metric", "kind", "unit", "labels", "meaning"), rows)


def _suffix(kind: Kind) -> str:
    return {Kind.COUNTER: "_total", Kind.INFO: "_info"}.get(kind, "")


def _unit(name: str) -> str:
    if name.endswith("_seconds"):
        return "seconds"
    return "bytes" if "_bytes_" in name else ""


def cloudwatch_table(family: str) -> str:
    """The metrics of one family: `kcl`, with dimensions, or `own`, without."""
    heads = ("metric", "unit", "level", "meaning")
    rows = list(_cloudwatch_rows())
    if family == "own":
        return markdown_table(heads, (row[1:] for row in rows if not row[0]))
    return markdown_table(("dimensions", *heads), (row for row in rows if row[0]))


def _cloudwatch_rows() -> Iterator[tuple[str, ...]]:
    found = {level: _published(level) for level in (MetricsLevel.SUMMARY, MetricsLevel.DETAILED)}
    all_sets = found[MetricsLevel.DETAILED]
    missing = METRIC_TEXTS.keys() - all_sets.keys()
    assert not missing, f"metrics that no event has: {missing}"
    for key, text in METRIC_TEXTS.items():
        dimensions, unit = all_sets.pop(key)
        level = "summary" if key in found[MetricsLevel.SUMMARY] else "detailed"
        yield dimensions, f"`{key[1]}`", unit, level, text
    assert not all_sets, (
        f"METRIC_TEXTS in core/observing/metrics.py needs a sentence for each of {list(all_sets)}"
    )


def _published(level: MetricsLevel) -> dict[tuple[str, str], tuple[str, str]]:
    window = MetricWindow(level, WorkerId("w"))
    for event in running_events():
        window.observe(event, 0)
    sets = list(window.close(0))
    for kind in EVENT_TYPES:
        window.observe(sample(kind, shard=_SHARD), 0)
    sets += window.close(0)
    return {
        (dict(each.dimensions).get("Operation", ""), each.name): (
            ", ".join(
                f"Operation={value}" if name == "Operation" else name for name, value in each.dimensions
            ),
            each.unit.value,
        )
        for each in sets
    }
