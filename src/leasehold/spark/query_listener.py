"""A listener that shows Spark queries in the metrics of a worker: Prometheus, OpenTelemetry, or your own observer."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from leasehold.adapters.observers import combine_observers
from leasehold.adapters.status_server import Response, StatusServer
from leasehold.adapters.system_clock import SystemClock
from leasehold.core.events import Event, FindingsReviewed, MemberStarted, MemberStopped, Observer
from leasehold.core.finding import Finding, finding_to_json, worst_severity
from leasehold.errors import ConfigError
from leasehold.spark.query_events import QueryEvents


class QueryMetricsListener(StreamingQueryListener):
    """Feeds the metrics of a worker with the progress of a query that reads with this source.

    `spark.streams.addListener(QueryMetricsListener(status_port=9090))` serves `/metrics` for Prometheus, and `/health`
    with the findings of the query's member. With `opentelemetry`, metrics go to the program's meter provider. `observe`
    gets the events. A listener follows one query at a time; add one for each query.
    """

    def __init__(
        self,
        observe: Observer | None = None,
        *,
        status_port: int | None = None,
        status_host: str = "127.0.0.1",
        opentelemetry: bool = False,
    ) -> None:
        super().__init__()
        observers = [observe] if observe is not None else []
        self._server: StatusServer | None = None
        if status_port is not None:
            observers.append(self._serve(status_host, status_port))
        if opentelemetry:
            observers.append(_open_telemetry())
        self._observe = combine_observers(*observers)
        self._events = QueryEvents()

    @property
    def url(self) -> str | None:
        """The address of the server of `/metrics`; None without `status_port`."""
        return None if self._server is None else self._server.url

    def close(self) -> None:
        """Stop serving metrics."""
        if self._server is not None:
            self._server.close()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Do nothing: the first progress names the shards."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Report the events of one batch."""
        self._report(event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Report the events of an idle query: the records of its last batch, and its lag.

        Spark has added such a report to the query, every ten seconds, but does not pass it on.
        """
        if self._events.is_followed(str(event.runId)):
            query = SparkSession.active().streams.get(str(event.id))
            if query is not None and query.lastProgress is not None:
                self._report(query.lastProgress)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Report that the query has ended. Its series disappear."""
        for each in self._events.end(str(event.runId)):
            self._observe(each)

    def _report(self, progress: Any) -> None:
        for each in self._events.from_progress(json.loads(progress.json)):
            self._observe(each)

    def _serve(self, host: str, port: int) -> Observer:
        try:
            from leasehold.adapters.prometheus import PrometheusMetrics  # noqa: PLC0415 - an extra that may be missing
        except ModuleNotFoundError as error:
            raise ConfigError(
                "status_port needs prometheus-client: pip install 'leasehold[prometheus]'"
            ) from error
        metrics = PrometheusMetrics(SystemClock().now_ms)
        kind = "text/plain; version=0.0.4; charset=utf-8"
        health = _QueryHealth()
        routes = {
            "/metrics": lambda: Response(200, kind, metrics.text()),
            "/health": health.respond,
        }
        self._server = StatusServer(host, port, routes)
        return combine_observers(metrics, health)


class _QueryHealth:
    """The findings of the query's member, in the form of a worker's `/health`."""

    def __init__(self) -> None:
        self._state = "starting"
        self._findings: tuple[Finding, ...] = ()

    def __call__(self, event: Event) -> None:
        match event:
            case MemberStarted():
                self._state = "running"
            case MemberStopped():
                self._state, self._findings = "stopped", ()
            case FindingsReviewed(findings=findings):
                self._findings = findings
            case _:
                pass  # metrics show the shards

    def respond(self) -> Response:
        """200 while the query runs: Spark itself restarts what fails."""
        findings = [{"shard": each.shard, **finding_to_json(each)} for each in self._findings]
        report = {
            "ok": self._state != "stopped",
            "state": self._state,
            "severity": worst_severity(self._findings).value,
            "findings": findings,
        }
        body = json.dumps(report, indent=2).encode() + b"\n"
        return Response(200 if report["ok"] else 503, "application/json", body)


def _open_telemetry() -> Observer:
    try:
        from opentelemetry.metrics import get_meter_provider  # noqa: PLC0415 - an extra that may be missing

        from leasehold.adapters.opentelemetry import OpenTelemetryMetrics  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            "opentelemetry=True needs OpenTelemetry: pip install 'leasehold[opentelemetry]'"
        ) from error
    return OpenTelemetryMetrics(SystemClock().now_ms, get_meter_provider())
