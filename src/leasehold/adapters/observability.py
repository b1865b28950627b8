"""Creates the observers that the settings ask for: logs, health, Prometheus, CloudWatch, EMF, OpenTelemetry."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from leasehold.adapters.aws.cloudwatch import CloudWatchMetrics
from leasehold.adapters.emf import EmfMetrics
from leasehold.adapters.logs import LogObserver, format_value
from leasehold.adapters.observers import combine_observers
from leasehold.adapters.status_server import Response, Route, StatusServer
from leasehold.config.settings import MetricsLevel, MetricsOutput, ObserveSettings, milliseconds
from leasehold.core.events import Event, Observer
from leasehold.core.model import WorkerId
from leasehold.core.observing.health import Health, HealthLimits, HealthReport, health_to_json
from leasehold.core.observing.metrics import MetricWindow, parse_dimensions
from leasehold.errors import ConfigError, LeaseholdError
from leasehold.ports import Clock

LOGGER: Final = logging.getLogger("leasehold.worker")

OfferStatus = Callable[[Mapping[str, Route]], None]


class HealthObserver:
    """Health that one thread updates and another one reads."""

    def __init__(self, limits: HealthLimits, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._health = Health(limits, now_ms())

    def __call__(self, event: Event) -> None:
        """Process one event."""
        with self._lock:
            self._health.observe(event, self._now_ms())

    def report(self) -> HealthReport:
        """The health at this moment."""
        with self._lock:
            return self._health.report(self._now_ms())

    def respond(self) -> Response:
        """The response to a probe: 200 if healthy, 503 if not. The body lists the problems."""
        report = self.report()
        body = json.dumps(health_to_json(report), indent=2).encode() + b"\n"
        return Response(200 if report.is_healthy else 503, "application/json", body)


@dataclass(frozen=True, slots=True)
class ObserverPorts:
    """What observers reach the outside with."""

    clock: Clock
    cloudwatch_client: Callable[[], Any]  # called only if metrics are published
    also: Observer | None = None  # an additional observer of the user
    offer_status: OfferStatus | None = None  # gets the routes of the status, if another process serves them


@asynccontextmanager
async def run_observers(
    settings: ObserveSettings,
    *,
    application: str,
    worker: WorkerId,
    failover_after: timedelta,
    ports: ObserverPorts,
) -> AsyncIterator[Observer]:
    """One observer for everything in the settings. It serves and publishes until the block ends."""
    logs = LogObserver(ports.clock.now_ms)
    observers: list[Observer] = [logs]
    async with AsyncExitStack() as stack:
        if settings.status_port is not None:
            seen, routes = _make_status(settings, failover_after, ports.clock)
            observers += seen
            if ports.offer_status is not None:
                ports.offer_status(routes)
            else:
                server = StatusServer(settings.status_host, settings.status_port, routes)
                stack.callback(server.close)
                LOGGER.info("status served url=%s", server.url)
        publishing = _Publishing(settings, settings.metrics_namespace or application, worker, ports)
        observers += await publishing.start(stack, logs)
        if ports.also is not None:
            observers.append(ports.also)
        try:
            yield combine_observers(*observers)
        except Exception as error:
            LOGGER.error("worker stops error=%s", format_value(_describe_error(error)))  # noqa: TRY400 - the caller logs the traceback
            raise


@dataclass(frozen=True, slots=True)
class _Publishing:
    """Metrics that are sent or written, and not fetched."""

    settings: ObserveSettings
    namespace: str
    worker: WorkerId
    ports: ObserverPorts

    async def start(self, stack: AsyncExitStack, logs: Observer) -> list[Observer]:
        """Publish until the stack is closed."""
        observers: list[Observer] = []
        if self.settings.cloudwatch_metrics is not MetricsLevel.NONE:
            metrics = CloudWatchMetrics(
                self.ports.cloudwatch_client(),
                namespace=self.namespace,
                window=self._window(self.settings.cloudwatch_metrics),
                clock=self.ports.clock,
                report=logs,
            )
            await stack.enter_async_context(metrics.publish_in_background())
            observers.append(metrics)
        if self.settings.metrics is MetricsOutput.EMF:
            emf = EmfMetrics(self._window(self.settings.metrics_level), self.namespace, self.ports.clock)
            await stack.enter_async_context(emf.publish_in_background())
            observers.append(emf)
        elif self.settings.metrics is MetricsOutput.OPENTELEMETRY:
            observers.append(_open_telemetry(self.ports.clock, stack))
        return observers

    def _window(self, level: MetricsLevel) -> MetricWindow:
        return MetricWindow(level, self.worker, parse_dimensions(self.settings.metrics_dimensions or ""))


def _describe_error(error: Exception) -> str:
    """The text of our own errors, which contains no secrets; only the type of any other error."""
    return str(error) if isinstance(error, LeaseholdError) else type(error).__name__


def _make_status(
    settings: ObserveSettings, failover_after: timedelta, clock: Clock
) -> tuple[list[Observer], Mapping[str, Route]]:
    limits = HealthLimits(
        failover_ms=milliseconds(failover_after), stuck_after_ms=milliseconds(settings.stuck_after)
    )
    health = HealthObserver(limits, clock.now_ms)
    metrics, serve_metrics = _prometheus_observer(clock)
    return [health, *metrics], {"/health": health.respond, "/metrics": serve_metrics}


def _open_telemetry(clock: Clock, stack: AsyncExitStack) -> Observer:
    try:
        from leasehold.adapters.opentelemetry import (  # noqa: PLC0415 - an extra that may be missing
            OpenTelemetryMetrics,
            open_provider,
        )
    except ModuleNotFoundError as error:
        raise ConfigError(
            "metrics='opentelemetry' needs OpenTelemetry: pip install 'leasehold[opentelemetry]'"
        ) from error
    return OpenTelemetryMetrics(clock.now_ms, stack.enter_context(open_provider()))


def _prometheus_observer(clock: Clock) -> tuple[list[Observer], Route]:
    try:
        from leasehold.adapters.prometheus import PrometheusMetrics  # noqa: PLC0415 - an extra that may be missing
    except ModuleNotFoundError:
        missing = b"prometheus-client is not installed: pip install 'leasehold[prometheus]'\n"
        return [], lambda: Response(404, "text/plain", missing)
    metrics = PrometheusMetrics(clock.now_ms)
    return [metrics], lambda: Response(200, "text/plain; version=0.0.4; charset=utf-8", metrics.text())
