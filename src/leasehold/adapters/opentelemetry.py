"""Metrics for OpenTelemetry, under the names of Prometheus. Needs the extra `opentelemetry`.

`core.observing.series` has the names and values. If the program has set a meter provider of its own, the metrics go
there. Otherwise they are sent by OTLP over HTTP, as the standard variables say (`OTEL_EXPORTER_OTLP_ENDPOINT`, ...).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter_provider
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

from leasehold.core.events import Event
from leasehold.core.observing.series import FAMILIES, Family, Kind, MemberSeries, Sample


class OpenTelemetryMetrics:
    """An observer, and instruments that show its state whenever a reader of the provider asks."""

    def __init__(self, now_ms: Callable[[], int], provider: MeterProvider) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._series = MemberSeries()
        meter = provider.get_meter("leasehold")
        for name, (kind, text) in FAMILIES.items():
            self._create(meter, name, kind, text)

    def __call__(self, event: Event) -> None:
        """Process one event."""
        with self._lock:
            self._series.observe(event, self._now_ms())

    def _create(self, meter: Meter, name: str, kind: Kind, text: str) -> None:
        unit = "s" if name.endswith("_seconds") else "1"
        match kind:
            case Kind.COUNTER:
                meter.create_observable_counter(name, [self._observer(name, _value)], unit, text)
            case Kind.GAUGE:
                meter.create_observable_gauge(name, [self._observer(name, _value)], unit, text)
            case Kind.INFO:
                meter.create_observable_gauge(f"{name}_info", [self._observer(name, _value)], unit, text)
            case Kind.SUMMARY:
                meter.create_observable_counter(f"{name}_sum", [self._observer(name, _value)], unit, text)
                meter.create_observable_counter(f"{name}_count", [self._observer(name, _count)], "1", text)

    def _observer(
        self, name: str, value: Callable[[Sample], float]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            with self._lock:
                families = [each for each in self._series.families(self._now_ms()) if each.name == name]
            return [
                Observation(value(sample), _attributes(family, sample))
                for family in families
                for sample in family.samples
            ]

        return observe


def _value(sample: Sample) -> float:
    return sample.value


def _count(sample: Sample) -> float:
    return sample.count


def _attributes(family: Family, sample: Sample) -> dict[str, str]:
    return dict(zip(family.label_names, sample.labels, strict=False))


@contextmanager
def open_provider() -> Iterator[MeterProvider]:
    """The provider of the program, or one of our own that exports by OTLP until the block ends."""
    provider = get_meter_provider()
    if isinstance(provider, SdkMeterProvider):
        yield provider
        return
    own = SdkMeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    try:
        yield own
    finally:
        own.shutdown()
