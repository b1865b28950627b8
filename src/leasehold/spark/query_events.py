"""The progress reports of a Spark query as events, so that the observers of a worker show a query too. Has no effects.

The source reports each of its shards in `latestOffset`: how far it is behind, and what was read of it so far. Spark
asks for that when it plans a batch. So the records of a batch are in the next report, when the batch is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from leasehold.core.events import (
    BatchHandled,
    Event,
    FindingsReviewed,
    LeaseReleased,
    LeaseTaken,
    MemberStarted,
    MemberStopped,
    PageRead,
)
from leasehold.core.finding import finding_from_json
from leasehold.core.model import LeaseKey, WorkerId, parse_lease_key
from leasehold.core.position import TRIM_HORIZON, Position


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was read of a shard up to the last report."""

    records: int
    size_bytes: int


class QueryEvents:
    """Compares each report of one query with the one before.

    A session may have other queries, of this source or of others. The first one with a report is followed until it
    ends.
    """

    def __init__(self) -> None:
        self._run = ""
        self._worker: WorkerId | None = None
        self._seen: dict[LeaseKey, _Seen] = {}
        self._reports = 0
        self._has_findings = False
        self._batch_ms: int | None = None  # how long the last batch with records took

    def from_progress(self, progress: Mapping[str, Any]) -> Iterator[Event]:
        """The events of one progress report. None if the query does not read from Kinesis with this source, or if
        another one is followed.
        """
        shards = _shards(progress)
        run = str(progress.get("runId"))
        if shards is None or (self._worker is not None and run != self._run):
            return
        self._reports += 1
        if self._worker is None:
            self._run = run
            self._worker = WorkerId(str(progress.get("id") or "query"))
            name = str(progress.get("name") or self._worker)
            yield MemberStarted(self._worker, name, "")
        for key in [key for key in self._seen if key not in shards]:
            del self._seen[key]
            yield LeaseReleased(key, parse_lease_key(key)[1], None)
        duration_ms = _number(progress.get("durationMs", {}), "triggerExecution") or 0
        batch_ms = duration_ms if self._batch_ms is None else self._batch_ms
        for key, report in shards.items():
            yield from self._shard_events(key, report, batch_ms)
        if progress.get("numInputRows"):
            self._batch_ms = duration_ms
        yield from self._findings(progress)

    def _findings(self, progress: Mapping[str, Any]) -> Iterator[Event]:
        """What the member of the query has found, and once more when nothing of it lasts."""
        parsed = map(finding_from_json, _latest(progress).get("findings") or ())
        findings = tuple(finding for finding in parsed if finding is not None)
        if findings or self._has_findings:
            yield FindingsReviewed(findings)
        self._has_findings = bool(findings)

    def end(self, run: str) -> Iterator[Event]:
        """A run of a query has ended. If it is the one that was followed, the next report of any query is followed."""
        if self._worker is not None and run == self._run:
            if self._has_findings:
                yield FindingsReviewed(())
            yield MemberStopped(self._worker, len(self._seen))
            self._worker = self._batch_ms = None
            self._has_findings = False
            self._seen.clear()

    def is_followed(self, run: str) -> bool:
        """Whether the reports of this run make events."""
        return self._worker is not None and run == self._run

    def _shard_events(self, key: LeaseKey, report: Mapping[str, Any], duration_ms: int) -> Iterator[Event]:
        stream, shard = parse_lease_key(key)
        now = _Seen(_number(report, "recordsRead") or 0, _number(report, "bytesRead") or 0)
        before = self._seen.get(key)
        self._seen[key] = now
        if before is None:
            yield LeaseTaken(key, shard, None, None, 0, TRIM_HORIZON)
            before = _Seen(0, 0)
        if now.records < before.records:  # the query has taken the lease anew
            before = _Seen(0, 0)
        records, size_bytes = now.records - before.records, now.size_bytes - before.size_bytes
        behind_ms = _number(report, "millisBehind")
        yield PageRead(shard, records, size_bytes, behind_ms, None, stream=stream)
        if records:
            # Observers only compare these positions, and no batch is done before the one before it.
            end = Position(str(self._reports))
            yield BatchHandled(shard, records, size_bytes, end, duration_ms, behind_ms, stream=stream)


def _latest(progress: Mapping[str, Any]) -> Mapping[str, Any]:
    """The report of this source; empty if the query has no such source."""
    for source in progress.get("sources") or ():
        latest = source.get("latestOffset")
        if isinstance(latest, dict) and isinstance(latest.get("shards"), dict):
            return latest
    return {}


def _shards(progress: Mapping[str, Any]) -> Mapping[LeaseKey, Mapping[str, Any]] | None:
    """The report of each shard, by the key of its lease: with one stream, its id."""
    latest = _latest(progress)
    if not latest:
        return None
    return {LeaseKey(key): each for key, each in latest["shards"].items() if isinstance(each, dict)}


def _number(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    return int(value) if isinstance(value, int | float) else None
