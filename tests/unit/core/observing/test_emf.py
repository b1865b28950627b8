"""Documents of the embedded metric format obey its rules."""

import json
from typing import Any

from leasehold.config.settings import MetricsLevel
from leasehold.core.events import Event
from leasehold.core.model import WorkerId
from leasehold.core.observing.emf import emf_documents
from leasehold.core.observing.metrics import MetricWindow, StatisticSet, Unit, parse_dimensions
from tools.reference.metrics import running_events

UNITS = {"Count", "Bytes", "Milliseconds"}


def check(document: Any) -> None:
    """The rules of the specification."""
    assert set(document["_aws"]) == {"Timestamp", "CloudWatchMetrics"}
    assert isinstance(document["_aws"]["Timestamp"], int)
    (directive,) = document["_aws"]["CloudWatchMetrics"]
    assert set(directive) == {"Namespace", "Dimensions", "Metrics"}
    assert 1 <= len(directive["Namespace"]) <= 1_024
    (dimensions,) = directive["Dimensions"]
    assert len(dimensions) <= 30
    assert all(isinstance(document[name], str) and 1 <= len(document[name]) <= 1_024 for name in dimensions)
    names = [metric["Name"] for metric in directive["Metrics"]]
    assert 1 <= len(names) == len(set(names)) <= 100
    assert {metric["Unit"] for metric in directive["Metrics"]} <= UNITS
    for name in names:
        values = document[name] if isinstance(document[name], list) else [document[name]]
        assert 1 <= len(values) <= 100
        assert all(isinstance(value, int | float) for value in values)
    assert set(document) == {"_aws", *dimensions, *names}
    assert len(json.dumps(document)) < 256 * 1024


def published(events: list[Event], dimensions: str = "") -> list[Any]:
    window = MetricWindow(MetricsLevel.DETAILED, WorkerId("w" * 2_000), parse_dimensions(dimensions))
    for event in events:
        window.observe(event, 0)
    return list(emf_documents(window.close(0), namespace="billing", at_ms=1_700_000_000_000))


def test_every_document_obeys_the_rules() -> None:
    documents = published(running_events() * 60, "Operation, ShardId, WorkerIdentifier, Service=orders")
    assert len(documents) > 5
    for document in documents:
        check(document)
        assert document["Service"] == "orders"


def test_a_statistic_set_keeps_minimum_maximum_sum_and_count() -> None:
    for numbers in ([7], [3, 9], [1, 2, 2, 50], [*range(250)]):
        found = StatisticSet("Time", Unit.MILLISECONDS, (), numbers[0], numbers[0])
        for number in numbers:
            found.add(number)
        documents = list(emf_documents([found], namespace="billing", at_ms=1))
        values: list[float] = []
        for document in documents:
            check(document)
            values += document["Time"] if isinstance(document["Time"], list) else [document["Time"]]
        assert (min(values), max(values), len(values)) == (min(numbers), max(numbers), len(numbers))
        assert abs(sum(values) - sum(numbers)) < 1e-6
