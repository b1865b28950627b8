"""Creates the observers that the settings ask for: logs, health, Prometheus, CloudWatch."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from leasehold.adapters.aws.cloudwatch import CloudWatchMetrics
from leasehold.adapters.logs import LogObserver, format_value
from leasehold.adapters.observers import combine_observers
from leasehold.adapters.status_server import Response, Route, StatusServer
from leasehold.config.settings import MetricsLevel, ObserveSettings, milliseconds
from leasehold.core.events import Event, Observer
from leasehold.core.model import WorkerId
from leasehold.core.observing.health import Health, HealthLimits, HealthReport, health_to_json
from leasehold.errors import LeaseholdError
from leasehold.ports import Clock

LOGGER: Final = logging.getLogger("leasehold.worker")


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


@asynccontextmanager
async def run_observers(
    settings: ObserveSettings,
    *,
    application: str,
    worker: WorkerId,
    failover_after: timedelta,
    clock: Clock,
    cloudwatch_client: Callable[[], Any],
    also: Observer | None = None,
) -> AsyncIterator[Observer]:
    """One observer for everything in the settings. It serves and publishes until the block ends.

    `cloudwatch_client` is called only if metrics are published. `also` is an additional observer of the user.
    """
    logs = LogObserver(clock.now_ms)
    observers: list[Observer] = [logs]
    async with AsyncExitStack() as stack:
        if settings.status_port is not None:
            observers += _serve_status(settings, settings.status_port, failover_after, clock, stack)
        if settings.cloudwatch_metrics is not MetricsLevel.NONE:
            metrics = CloudWatchMetrics(
                cloudwatch_client(),
                application=application,
                worker=worker,
                level=settings.cloudwatch_metrics,
                clock=clock,
                report=logs,
            )
            await stack.enter_async_context(metrics.publish_in_background())
            observers.append(metrics)
        if also is not None:
            observers.append(also)
        try:
            yield combine_observers(*observers)
        except Exception as error:
            LOGGER.error("worker stops error=%s", format_value(_describe_error(error)))  # noqa: TRY400 - the caller logs the traceback
            raise


def _describe_error(error: Exception) -> str:
    """The text of our own errors, which contains no secrets; only the type of any other error."""
    return str(error) if isinstance(error, LeaseholdError) else type(error).__name__


def _serve_status(
    settings: ObserveSettings, port: int, failover_after: timedelta, clock: Clock, stack: AsyncExitStack
) -> list[Observer]:
    limits = HealthLimits(
        failover_ms=milliseconds(failover_after), stuck_after_ms=milliseconds(settings.stuck_after)
    )
    health = HealthObserver(limits, clock.now_ms)
    metrics, serve_metrics = _prometheus_observer(clock)
    server = StatusServer(settings.status_host, port, {"/health": health.respond, "/metrics": serve_metrics})
    stack.callback(server.close)
    LOGGER.info("status served url=%s", server.url)
    return [health, *metrics]


def _prometheus_observer(clock: Clock) -> tuple[list[Observer], Route]:
    try:
        from leasehold.adapters.prometheus import PrometheusMetrics  # noqa: PLC0415 - an extra that may be missing
    except ModuleNotFoundError:
        missing = b"prometheus-client is not installed: pip install 'leasehold[prometheus]'\n"
        return [], lambda: Response(404, "text/plain", missing)
    metrics = PrometheusMetrics(clock.now_ms)
    return [metrics], lambda: Response(200, "text/plain; version=0.0.4; charset=utf-8", metrics.text())
