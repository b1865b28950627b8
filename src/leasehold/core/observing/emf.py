"""Statistic sets as documents of CloudWatch's embedded metric format (EMF). Has no effects.

CloudWatch Logs extracts metrics from such lines, so a container needs neither credentials nor a network connection for
them. A value is a number or a list of at most 100 numbers. A statistic set becomes numbers with the same minimum,
maximum, sum and count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from leasehold.core.observing.metrics import Dimensions, StatisticSet

T = TypeVar("T")

VALUES_MAX: Final = 100
METRICS_MAX: Final = 100
VALUE_LENGTH_MAX: Final = 1_024


def emf_documents(sets: Iterable[StatisticSet], *, namespace: str, at_ms: int) -> Iterator[Mapping[str, Any]]:
    """One document for the metrics with the same dimensions, or several if they do not fit."""
    by_dimensions: defaultdict[Dimensions, list[tuple[StatisticSet, list[float]]]] = defaultdict(list)
    for each in sets:
        by_dimensions[each.dimensions] += [(each, part) for part in _parts(list(_values(each)), VALUES_MAX)]
    for dimensions, found in by_dimensions.items():
        for group in _without_repetition(found):
            yield _document(dimensions, group, namespace, at_ms)


def _parts(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _values(each: StatisticSet) -> Iterator[float]:
    """Numbers with the minimum, maximum, sum and count of the set."""
    yield each.minimum
    if each.count > 1:
        yield each.maximum
    rest = each.count - 2
    for _ in range(rest):
        yield (each.total - each.minimum - each.maximum) / rest


def _without_repetition(
    found: list[tuple[StatisticSet, list[float]]],
) -> Iterator[list[tuple[StatisticSet, list[float]]]]:
    """A document has each name once, and at most 100 metrics."""
    rounds: list[list[tuple[StatisticSet, list[float]]]] = []
    seen: defaultdict[str, int] = defaultdict(int)
    for each, values in found:
        number = seen[each.name]
        seen[each.name] += 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append((each, values))
    for group in rounds:
        yield from _parts(group, METRICS_MAX)


def _document(
    dimensions: Dimensions, group: list[tuple[StatisticSet, list[float]]], namespace: str, at_ms: int
) -> Mapping[str, Any]:
    return {
        "_aws": {
            "Timestamp": at_ms,
            "CloudWatchMetrics": [
                {
                    "Namespace": namespace,
                    "Dimensions": [[name for name, _ in dimensions]],
                    "Metrics": [{"Name": each.name, "Unit": each.unit.value} for each, _ in group],
                }
            ],
        },
        **{name: value[:VALUE_LENGTH_MAX] or "-" for name, value in dimensions},
        **{each.name: values[0] if len(values) == 1 else values for each, values in group},
    }
