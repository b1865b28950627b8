"""Merges the health and the metrics of several worker processes. Has no effects.

Metrics are merged as text, so the supervisor needs no library for them: each series gets a label `process`, and the
series of one metric stay together below its description, as the format requires.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from leasehold.core.finding import (
    Finding,
    Severity,
    finding_from_json,
    finding_to_json,
    format_duration,
    worst_severity,
)

_SUFFIXES: Final = ("_bucket", "_count", "_sum", "_total", "_created", "_info")
_STATES: Final = ("starting", "running", "waiting", "ended")
# A process imports the program and opens its connections. Even on a busy machine that takes seconds.
START_MS_MAX: Final = 120_000


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One worker process as its supervisor sees it."""

    process: int
    state: str  # starting, running, waiting (for its restart) or ended
    pid: int | None
    restarts: int
    last_end: str | None  # how it ended the last time
    health: Mapping[str, Any] | None = None  # its own report; None if it did not respond
    age_ms: int = 0  # since the process was started; 0 if none runs

    @property
    def is_start_late(self) -> bool:
        """Whether the process should have opened its connections by now, and has not."""
        return self.state == "starting" and self.age_ms >= START_MS_MAX

    def to_json(self) -> Mapping[str, Any]:
        """The status as JSON values, without the report of the process."""
        return {
            "process": self.process,
            "state": self.state,
            "pid": self.pid,
            "restarts": self.restarts,
            "last_end": self.last_end,
            "age_ms": self.age_ms,
            "ok": None if self.health is None else bool(self.health.get("ok")),
        }


def parse_health(body: str | None) -> Mapping[str, Any] | None:
    """The report in the response of a process; None if there is none."""
    try:
        report = json.loads(body or "")
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def merge_health(processes: Sequence[ProcessStatus]) -> Mapping[str, Any]:
    """One report for all processes, of the same form as that of one process.

    A process that waits for its restart is a warning while another one runs: the others have its shards by then, and a
    restart of all of them would not help.
    """
    problems = [problem for each in processes for problem in _problems(each)]
    warnings = [f"process {each.process}: {text}" for each in processes for text in _texts(each, "warnings")]
    warnings += [
        f"process {each.process} ended ({each.last_end}) and waits for its restart"
        for each in processes
        if each.state == "waiting"
    ]
    if not any(each.state in {"starting", "running"} for each in processes):
        problems.append("no process runs")
    findings = [finding for each in processes for finding in _findings(each)]
    return {
        "ok": not problems,
        "state": _common_state(processes),
        "problems": problems,
        "warnings": warnings,
        "severity": worst_severity(findings).value,
        "findings": [{"shard": each.shard, **finding_to_json(each)} for each in findings],
        "kinesis_calls": _merge_calls(processes),
        "shards": {
            shard: {**report, "process": each.process}
            for each in processes
            for shard, report in _shards(each).items()
        },
        "processes": [each.to_json() for each in processes],
    }


def _merge_calls(processes: Sequence[ProcessStatus]) -> Mapping[str, Mapping[str, float]]:
    """The calls to Kinesis a second of all processes, by operation."""
    sums: dict[str, dict[str, float]] = {}
    for each in processes:
        for operation, rates in (each.health or {}).get("kinesis_calls", {}).items():
            total = sums.setdefault(operation, {})
            for name, rate in rates.items():
                total[name] = round(total.get(name, 0) + rate, 2)
    return sums


def _common_state(processes: Sequence[ProcessStatus]) -> str:
    """`running` as soon as one process runs."""
    states = {each.state for each in processes}
    return next((state for state in ("running", *_STATES) if state in states), "ended")


def process_finding(status: ProcessStatus) -> Finding | None:
    """What is wrong with a process that cannot tell it itself; None if it can, or if nothing is wrong."""
    subject = f"process {status.process}"
    if status.state == "running" and status.health is None:
        return Finding(
            code="process_silent",
            severity=Severity.PROBLEM,
            text=f"{subject} (pid {status.pid}) does not respond",
            remedy=f"it was suspended, or lacks CPU time, or hangs: look at its log; if it stays silent, end pid "
            f"{status.pid}, and it is started again",
            subject=subject,
        )
    if status.is_start_late:
        return Finding(
            code="process_start_hangs",
            severity=Severity.PROBLEM,
            text=f"{subject} (pid {status.pid}) has not opened its connections {format_duration(status.age_ms)} after "
            "its start: the import of the program hangs, or a read of credentials or settings does",
            remedy=f"look at what the program does while it is imported, and at its log; then end pid {status.pid}, "
            "and it is started again",
            subject=subject,
        )
    return None


def _problems(status: ProcessStatus) -> list[str]:
    if (finding := process_finding(status)) is not None:
        return [finding.text]
    shards = _shards(status)
    # A problem of a shard begins with the name of the shard, as in the report of one process.
    return [
        text if text.partition(" ")[0] in shards else f"process {status.process}: {text}"
        for text in _texts(status, "problems")
    ]


def _findings(status: ProcessStatus) -> Iterator[Finding]:
    if (finding := process_finding(status)) is not None:
        yield finding
    listed = (status.health or {}).get("findings", ())
    for finding in map(finding_from_json, listed if isinstance(listed, list) else ()):
        if finding is not None:
            about = f"process {status.process}: " if finding.shard is None else ""
            yield replace(finding, text=f"{about}{finding.text}")


def _texts(status: ProcessStatus, key: str) -> list[str]:
    return [str(text) for text in (status.health or {}).get(key, ())]


def _shards(status: ProcessStatus) -> Mapping[str, Mapping[str, Any]]:
    shards: Mapping[str, Mapping[str, Any]] = (status.health or {}).get("shards", {})
    return shards


def merge_metrics(texts: Mapping[int, str], processes: Sequence[ProcessStatus]) -> str:
    r"""The metrics of all processes in Prometheus' text format, labelled by process, and those of the supervisor.

    >>> texts = {0: "# TYPE x gauge\nx 1.0\n", 1: '# TYPE x gauge\nx{shard="a"} 2.0\n'}
    >>> print(merge_metrics(texts, []).partition("# HELP leasehold_process_up")[0].rstrip())
    # TYPE x gauge
    x{process="0"} 1.0
    x{process="1",shard="a"} 2.0
    """
    described: dict[str, dict[str, str]] = {}  # by metric: its HELP and TYPE lines
    samples: dict[str, list[str]] = {}
    for process, text in texts.items():
        for line in text.splitlines():
            if line.startswith("# "):
                _, kind, name, *_ = line.split(" ", 3)
                described.setdefault(name, {}).setdefault(kind, line)
            elif line:
                labelled = add_process_label(line, process)
                samples.setdefault(_metric_of(line, described), []).append(labelled)
    lines = [
        line for name, series in samples.items() for line in (*described.get(name, {}).values(), *series)
    ]
    return "\n".join([*lines, *_own_metrics(processes)]) + "\n"


def add_process_label(sample: str, process: int) -> str:
    """Add the label `process` to one sample.

    >>> add_process_label('x_total{shard="a b"} 1.0', 3), add_process_label("y 2", 0)
    ('x_total{process="3",shard="a b"} 1.0', 'y{process="0"} 2')
    """
    at = next((index for index, sign in enumerate(sample) if sign in "{ "), len(sample))
    label = f'process="{process}"'
    if sample[at : at + 1] != "{":
        return f"{sample[:at]}{{{label}}}{sample[at:]}"
    separator = "" if sample[at + 1 : at + 2] == "}" else ","
    return f"{sample[: at + 1]}{label}{separator}{sample[at + 1 :]}"


def _metric_of(sample: str, described: Mapping[str, object]) -> str:
    """The metric that a sample belongs to: its own name, or that name without the suffix of its kind."""
    name = sample.partition("{")[0].partition(" ")[0]
    if name in described:
        return name
    shorter = (name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix))
    return next((each for each in shorter if each in described), name)


def _own_metrics(processes: Sequence[ProcessStatus]) -> list[str]:
    up = [
        f'leasehold_process_up{{process="{each.process}"}} {int(each.state == "running")}'
        for each in processes
    ]
    restarts = [
        f'leasehold_process_restarts_total{{process="{each.process}"}} {each.restarts}' for each in processes
    ]
    return [
        "# HELP leasehold_process_up Whether the worker process runs.",
        "# TYPE leasehold_process_up gauge",
        *up,
        "# HELP leasehold_process_restarts_total Restarts of the worker process after an unexpected end.",
        "# TYPE leasehold_process_restarts_total counter",
        *restarts,
    ]
