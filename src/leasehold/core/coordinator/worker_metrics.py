"""The report of a worker about its utilisation: the KCL's worker metrics row, parsed and written.

For each metric (`C` is the processor) a row contains the last ten averages in percent, oldest first, and the operating
range that the worker wants. -1 stands for a failed measurement. A worker without metrics writes no figures, and is
balanced by the throughput of its shards alone.

Rows are untrusted until parsed. A malformed row gives an error that names the attribute, and its worker is assigned no
leases. `updated_s` is the wall clock of the worker; `core.assignment.worker_health` decides whether it is alive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final

from leasehold.core.coordinator.kcl_rows import METRICS_ENTITY
from leasehold.core.leases.lease_row import ENTITY_TYPE, is_valid_text
from leasehold.core.leases.row_writes import (
    Attribute,
    DeleteRow,
    Equals,
    PutRow,
    Row,
    UpdateRow,
    number,
    text,
)
from leasehold.core.model import WorkerId
from leasehold.errors import MalformedRowError

CPU: Final = "C"
FAILED_SAMPLE: Final = -1.0
SAMPLES_KEPT_MAX: Final = 10
METRICS_MAX: Final = 20  # the KCL has five; a malformed row may contain any number
ALPHA: Final = 0.5  # as in the KCL: the weight of the newest sample
RANGE_MAX: Final = 100  # the operating range of a worker that wants no limit, as in the KCL
REPORT_EVERY_MS: Final = 30_000
EXPIRED_AFTER_MS: Final = 2 * REPORT_EVERY_MS
STALE_AFTER_MS: Final = 24 * 3_600_000
SUPPORTS_SINGLE_TABLE: Final = 1  # the support code: this worker can move to a single table

UPDATED: Final = "lut"
SAMPLES: Final = "sts"
RANGES: Final = "opr"
SUPPORT: Final = "sup"
SUPPORT_UPDATED: Final = "slu"

_MICRO: Final = Decimal("0.000001")
_SECONDS_MAX: Final = 10**11  # seconds: the year 5138; a larger value was written in milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """The report of one worker. Times are seconds since the epoch on the clock of the worker."""

    worker: WorkerId
    updated_s: int
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    support: int | None = None
    support_updated_s: int | None = None

    @property
    def has_no_metrics(self) -> bool:
        """Whether the worker is balanced by throughput alone: no figures, or the KCL's metric THROUGHPUT."""
        return (not self.samples and not self.ranges) or "THROUGHPUT" in self.samples

    @property
    def is_failing(self) -> bool:
        """Whether its last measurement failed. It must be assigned no leases then."""
        return not self.has_no_metrics and any(
            values and values[-1] == FAILED_SAMPLE for values in self.samples.values()
        )

    def figures(self, newest_weight: float = ALPHA) -> Mapping[str, float]:
        """The smoothed use of each resource in percent; empty without metrics."""
        if self.has_no_metrics:
            return {}
        averages = {name: moving_average(values, newest_weight) for name, values in self.samples.items()}
        return {name: average for name, average in averages.items() if average is not None}

    def utilisation(self, newest_weight: float = ALPHA) -> float | None:
        """The smoothed use of its most used resource in percent; None without metrics."""
        return max(self.figures(newest_weight).values(), default=None)

    def room(self, newest_weight: float = ALPHA, *, share: float = 1.0) -> float | None:
        """The points of utilisation below this share of its operating range; negative above it. None: no range."""
        return min(
            (
                share * self.ranges[name][0] - figure
                for name, figure in self.figures(newest_weight).items()
                if self.ranges[name][0] < RANGE_MAX
            ),
            default=None,
        )


def moving_average(samples: Iterable[float], newest_weight: float = ALPHA) -> float | None:
    """The moving average over samples, oldest first. Failed samples are skipped.

    >>> moving_average([20, -1, 60, 80]), moving_average([-1]), moving_average([20, 60], 1.0)
    (60.0, None, 60.0)
    """
    average: float | None = None
    for sample in samples:
        if sample != FAILED_SAMPLE:
            average = sample if average is None else newest_weight * sample + (1 - newest_weight) * average
    return average


@dataclass(frozen=True, slots=True)
class LoadSamples:
    """The measurements of a worker since its last report, and the averages that it has reported."""

    unreported: tuple[float, ...] = ()
    reported: tuple[float, ...] = ()

    def with_sample(self, sample: float | None) -> LoadSamples:
        """Adds a measurement. Ignores None and values that are no percentage: the measurement failed."""
        if sample is None or math.isnan(sample) or not 0 <= sample <= 100:
            return self
        return replace(self, unreported=(*self.unreported, sample))

    def with_average(self) -> LoadSamples:
        """Adds the average since the last report, or a failed sample if nothing was measured."""
        average = sum(self.unreported) / len(self.unreported) if self.unreported else FAILED_SAMPLE
        return LoadSamples((), (*self.reported, average)[-SAMPLES_KEPT_MAX:])


def cpu_report(
    worker: WorkerId, samples: LoadSamples | None, now_s: int, range_percent: int = RANGE_MAX
) -> WorkerReport:
    """The report of one of our members: its load as processor use. `samples` is None if it measures nothing.

    Without figures it also contains no range: a Java leader would take a range without figures for a free worker.
    """
    has_samples = samples is not None and bool(samples.reported)
    return WorkerReport(
        worker=worker,
        updated_s=now_s,
        samples={CPU: samples.reported} if samples is not None and has_samples else {},
        ranges={CPU: (range_percent,)} if has_samples else {},
        support=SUPPORTS_SINGLE_TABLE,
        support_updated_s=now_s,
    )


# -- rows ----------------------------------------------------------------------------------------------------------


def create_report(report: WorkerReport, key_attribute: str) -> PutRow:
    """Create the report of a worker."""
    return PutRow(report.worker, {key_attribute: text(report.worker), **_attributes(report)})


def update_report(report: WorkerReport, key_attribute: str) -> UpdateRow:
    """Update the report. Refused if the row does not exist, or is of another kind."""
    attributes = _attributes(report)
    return UpdateRow(
        key=report.worker,
        when=(Equals(key_attribute, text(report.worker)), Equals(ENTITY_TYPE, text(METRICS_ENTITY))),
        set=attributes,
        proof=tuple(Equals(name, value) for name, value in attributes.items()),
    )


def delete_report(report: WorkerReport) -> DeleteRow:
    """Delete a report after a clean stop, or after a day without an update. Refused if it was updated since."""
    return DeleteRow(key=report.worker, when=(Equals(UPDATED, number(report.updated_s)),))


def is_report_row(row: Row) -> bool:
    """Whether a row of the lease table is a worker report."""
    return row.get(ENTITY_TYPE, {}).get("S") == METRICS_ENTITY


@dataclass(frozen=True, slots=True)
class ReportListing:
    """The reports of a scan, and an error for each malformed row."""

    reports: tuple[WorkerReport, ...]
    rejected: tuple[MalformedRowError, ...] = ()


def reports_from_rows(rows: Iterable[Row], key_attribute: str) -> ReportListing:
    """Parses every report. Malformed rows are rejected. Of two reports of a worker, the newer one counts."""
    reports: dict[WorkerId, WorkerReport] = {}
    rejected: list[MalformedRowError] = []
    for row in rows:
        try:
            report = report_from_row(row, key_attribute)
        except MalformedRowError as error:
            rejected.append(error)
        else:
            known = reports.get(report.worker)
            if known is None or known.updated_s < report.updated_s:
                reports[report.worker] = report
    return ReportListing(tuple(reports.values()), tuple(rejected))


def report_from_row(row: Row, key_attribute: str) -> WorkerReport:
    """Parses the row of a report. Raises MalformedRowError with the name of the wrong attribute."""
    key = row.get(key_attribute, {}).get("S")
    if not isinstance(key, str) or not key:
        raise MalformedRowError("", f"{key_attribute}: expected text; delete the row")
    if not is_valid_text(key):
        # Leases of such an owner could not be read.
        raise MalformedRowError(
            key, f"{key_attribute}: contains control characters or is too long; delete the row"
        )
    report = WorkerReport(
        worker=WorkerId(key),
        updated_s=_seconds(key, row, UPDATED),
        samples=_figures(key, row, SAMPLES, _percentage),
        ranges={name: tuple(map(int, values)) for name, values in _figures(key, row, RANGES, _range).items()},
        support=_seconds(key, row, SUPPORT) if SUPPORT in row else None,
        support_updated_s=_seconds(key, row, SUPPORT_UPDATED) if SUPPORT_UPDATED in row else None,
    )
    if not report.has_no_metrics and (not report.samples or report.samples.keys() - report.ranges.keys()):
        raise _malformed(key, RANGES, "has figures without ranges, or ranges without figures")
    return report


def _attributes(report: WorkerReport) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        ENTITY_TYPE: text(METRICS_ENTITY),
        UPDATED: number(report.updated_s),
        SAMPLES: _figure_map(report.samples),
        RANGES: _figure_map(report.ranges),
    }
    if report.support is not None and report.support_updated_s is not None:
        attributes |= {SUPPORT: number(report.support), SUPPORT_UPDATED: number(report.support_updated_s)}
    return attributes


def _figure_map(figures: Mapping[str, tuple[float, ...]]) -> Attribute:
    return {"M": {name: {"L": [_figure(value) for value in values]} for name, values in figures.items()}}


def _figure(value: float) -> Attribute:
    return (
        number(value) if isinstance(value, int) else number(Decimal(value).quantize(_MICRO).normalize() + 0)
    )


def _seconds(key: str, row: Row, name: str) -> int:
    value = _finite(row.get(name, {}).get("N"))
    if value is None or value != int(value) or not 0 <= value < _SECONDS_MAX:
        raise _malformed(key, name, "expected a whole number of seconds (type N)")
    return int(value)


def _figures(key: str, row: Row, name: str, is_right: Any) -> dict[str, tuple[float, ...]]:
    members = row.get(name, {"M": {}}).get("M")
    if not isinstance(members, dict) or len(members) > METRICS_MAX:
        raise _malformed(key, name, "expected a map of lists of numbers")
    figures: dict[str, tuple[float, ...]] = {}
    for metric, listed in members.items():
        items = listed.get("L") if isinstance(listed, dict) else None
        if not isinstance(items, list) or not items:
            raise _malformed(key, name, "expected a list of numbers for each metric")
        values = [_finite(item.get("N") if isinstance(item, dict) else None) for item in items]
        if not all(value is not None and is_right(value) for value in values):
            raise _malformed(key, name, "contains a number that is out of range")
        figures[metric] = tuple(value for value in values if value is not None)[-SAMPLES_KEPT_MAX:]
    return figures


def _percentage(value: float) -> bool:
    return 0 <= value <= 100 or value == FAILED_SAMPLE


def _range(value: float) -> bool:
    return 1 <= value <= 100 and value == int(value)


def _finite(digits: Any) -> float | None:
    try:
        value = float(digits) if isinstance(digits, str) else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _malformed(key: str, name: str, problem: str) -> MalformedRowError:
    return MalformedRowError(
        key, f"{name}: {problem}; its worker is assigned no leases until it writes a valid row"
    )
