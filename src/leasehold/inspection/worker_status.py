"""Reads `/health` of running workers. The response is untrusted until parsed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urlsplit
from urllib.request import Request, urlopen

from leasehold.core.finding import Finding, Severity, finding_from_json
from leasehold.core.observing.health import WORKER_CODES
from leasehold.errors import ConfigError

TIMEOUT_S: Final = 5
BODY_BYTES_MAX: Final = 4_000_000
OPERATION_LENGTH_MAX: Final = 64
RATE_MAX: Final = 1e9  # also refuses what is no number, which a browser could not parse


@dataclass(frozen=True, slots=True)
class WorkersStatus:
    """What workers say about themselves.

    `findings` are by lease key, or by address if they are about the whole worker. `calls` are the calls to Kinesis a
    second of all these workers, by operation: all of them, and those that were throttled. `idle_ms` has the shards that
    the workers read and find healthy, by lease key: the time since each last made progress. None: no worker was asked.
    """

    findings: Mapping[str, tuple[Finding, ...]]
    calls: Mapping[str, tuple[float, float]]
    idle_ms: Mapping[str, int] | None = None


def read_workers(addresses: Iterable[str]) -> WorkersStatus:
    """Read `/health` of these workers."""
    findings: defaultdict[str, list[Finding]] = defaultdict(list)
    calls: dict[str, tuple[float, float]] = {}
    idle_ms: dict[str, int] = {}
    asked = list(addresses)
    for address in asked:
        report = _report(address)
        for finding in [report] if isinstance(report, Finding) else _parse(report):
            findings[finding.shard or address].append(finding)
        for operation, (rate, throttled) in _parse_calls(report):
            before = calls.get(operation, (0.0, 0.0))
            calls[operation] = (before[0] + rate, before[1] + throttled)
        idle_ms.update(_parse_idle(report))
    told = {key: tuple(found) for key, found in findings.items()}
    return WorkersStatus(told, calls, idle_ms if asked else None)


def health_url(address: str) -> str:
    """The URL of `/health` at the status address of a worker. Raises ConfigError if it is no such address."""
    has_scheme = "://" in address
    parts = urlsplit(address if has_scheme else f"http://{address}")
    is_word = not has_scheme and ":" not in address  # a name without a port is more likely a mistake
    if is_word or parts.scheme not in {"http", "https"} or not parts.hostname or not _has_valid_port(parts):
        raise ConfigError(f"--status {address}: expected http://host:port, the status address of a worker")
    return f"{parts.scheme}://{parts.netloc}/health"


def _has_valid_port(parts: SplitResult) -> bool:
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False


def _report(address: str) -> Any:
    """The JSON of `/health`, or a finding that says why there is none."""
    url = health_url(address)
    try:
        return json.loads(_get_body(url))
    except (URLError, OSError, ValueError) as error:
        return _about_worker(f"the worker does not answer: {error}")
    except (HTTPException, RecursionError) as error:
        return _about_worker(f"the worker's response cannot be read: {type(error).__name__}")


def _get_body(url: str) -> bytes:
    request = Request(url, headers={"accept": "application/json"})  # noqa: S310 - the scheme was checked
    try:
        with urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            body: bytes = response.read(BODY_BYTES_MAX)
    except HTTPError as error:
        if error.code != 503:  # an unhealthy worker answers 503, with its report
            raise
        body = error.read(BODY_BYTES_MAX)
    return body


def _parse(report: Any) -> Iterable[Finding]:
    """The findings of one worker about its own shards. It also says what it knows about the fleet, which we know."""
    listed = report.get("findings") if isinstance(report, dict) else None
    if not isinstance(listed, list):
        yield _about_worker("the response of /health is not that of a Leasehold worker")
        return
    for finding in map(finding_from_json, listed):
        if finding is not None and finding.code in WORKER_CODES:
            yield finding


def _parse_calls(report: Any) -> Iterable[tuple[str, tuple[float, float]]]:
    listed = report.get("kinesis_calls") if isinstance(report, dict) else None
    for operation, rates in (listed if isinstance(listed, dict) else {}).items():
        values = [rates.get(name) for name in ("per_s", "throttled_per_s")] if isinstance(rates, dict) else []
        numbers = [value for value in values if isinstance(value, int | float) and 0 <= value < RATE_MAX]
        if len(numbers) == 2 and len(operation) <= OPERATION_LENGTH_MAX:
            yield operation, (float(numbers[0]), float(numbers[1]))


def _parse_idle(report: Any) -> Iterable[tuple[str, int]]:
    """The healthy shards that are not waiting for their parents, and for how long each has made no progress."""
    listed = report.get("shards") if isinstance(report, dict) else None
    for shard, about in (listed if isinstance(listed, dict) else {}).items():
        if isinstance(about, dict) and about.get("ok") is True and not about.get("waits_for"):
            idle_ms = about.get("idle_ms")
            if isinstance(idle_ms, int) and 0 <= idle_ms < RATE_MAX:
                yield shard, idle_ms


def _about_worker(problem: str) -> Finding:
    return Finding(
        code="worker_unhealthy",
        severity=Severity.PROBLEM,
        text=problem,
        remedy="look at the log of this worker, and restart it if it hangs",
    )
