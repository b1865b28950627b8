"""Metrics in Prometheus' text format. Needs the extra `prometheus`; `status_server` serves the text.

`core.observing.series` has the names and values. The counters are not prometheus_client's, because those keep their
values in files in its multi-process mode and cannot be removed there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from leasehold.core.events import Event
from leasehold.core.observing.series import Family, Kind, MemberSeries


class PrometheusMetrics(Collector):
    """An observer and the text that Prometheus scrapes. The two may be used from different threads."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._series = MemberSeries()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def __call__(self, event: Event) -> None:
        """Process one event."""
        with self._lock:
            self._series.observe(event, self._now_ms())

    def text(self) -> bytes:
        """All metrics, in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The current metrics; called by prometheus_client."""
        with self._lock:
            families = list(self._series.families(self._now_ms()))
        yield from map(_metric, families)


def _metric(family: Family) -> Metric:
    match family.kind:
        case Kind.INFO:
            (sample,) = family.samples
            labels = dict(zip(family.label_names, sample.labels, strict=True))
            return InfoMetricFamily(family.name, family.text, labels)
        case Kind.SUMMARY:
            summary = SummaryMetricFamily(family.name, family.text, labels=family.label_names)
            for sample in family.samples:
                summary.add_metric(sample.labels, sample.count, sample.value)
            return summary
        case Kind.COUNTER:
            counter = CounterMetricFamily(family.name, family.text, labels=family.label_names)
            for sample in family.samples:
                counter.add_metric(sample.labels, sample.value)
            return counter
        case Kind.GAUGE:
            gauge = GaugeMetricFamily(family.name, family.text, labels=family.label_names)
            for sample in family.samples:
                gauge.add_metric(sample.labels, sample.value)
            return gauge
