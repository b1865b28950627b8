"""Parses the progress reports and the error messages of a Spark query.

Spark passes on the source's report of its shards as `latestOffset`. The pipeline lets Spark observe the number of bytes
under the name OBSERVED.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.exactly_once.query_offset import offset_from_json

OBSERVED: Final = "leasehold"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OURS: Final = re.compile(r"leasehold\.errors\.\w+: (.+)")
# A jar calls something that this Spark does not have. A streaming query reports only the signature of the method.
_LINKAGE: Final = re.compile(
    r"java\.lang\.(?:\w*ClassChange|NoSuchMethod|NoSuchField|NoClassDefFound|AbstractMethod|Verify)Error: (.+)"
    r"|terminated with exception: ('[\w.$\[\]]+ [\w.$]+\.[\w$<>]+\(.*\)')"
)
_PYTHON: Final = re.compile(r"^((?:\w+\.)*\w+(?:Error|Exception): .+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One trigger of a query. It may have no records."""

    batch: int
    records: int
    size_bytes: int
    duration_ms: int
    behind_ms: Mapping[str, int | None]  # by shard; None: unknown
    ended_ms: int | None = None  # milliseconds since 1970
    committed: GenerationId | None = None  # the generation that Spark has committed
    is_repeated: bool = (
        False  # Spark took it from its log: the run before had planned it, and did not finish it
    )

    @property
    def max_behind_ms(self) -> int | None:
        """The largest known lag of all shards."""
        return max((each for each in self.behind_ms.values() if each is not None), default=None)


def progress_from_json(text: str) -> BatchProgress:
    """Parse one progress report of Spark."""
    report = json.loads(text)
    duration_ms = report.get("durationMs", {}).get("triggerExecution", 0)
    sources = report.get("sources") or [{}]
    return BatchProgress(
        batch=report["batchId"],
        records=report.get("numInputRows", 0),
        size_bytes=(report.get("observedMetrics", {}).get(OBSERVED) or {}).get("bytes") or 0,
        duration_ms=duration_ms,
        behind_ms=_lags(sources),
        ended_ms=_began_ms(report["timestamp"]) + duration_ms if "timestamp" in report else None,
        committed=_committed(sources),
        is_repeated=bool(report.get("numInputRows")) and sources[0].get("latestOffset") is None,
    )


def _began_ms(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)


def _committed(sources: list[Mapping[str, Any]]) -> GenerationId | None:
    end = sources[0].get("endOffset")
    offset = offset_from_json(end) if isinstance(end, dict) else None
    return offset.generation_id if offset else None


def _lags(sources: list[Mapping[str, Any]]) -> Mapping[str, int | None]:
    latest = sources[0].get("latestOffset")
    shards = latest.get("shards", {}) if isinstance(latest, dict) else {}
    return {shard: each.get("millisBehind") for shard, each in shards.items()}


def failure_reason(message: str) -> str:
    r"""Extract the cause from Spark's message about a failed query: the Python error, if there is one.

    >>> failure_reason("[STREAM_FAILED] Query failed\n  File x\nleasehold.errors.ConfigError: no stream\n\tat org")
    'no stream'
    >>> failure_reason("[STREAM_FAILED] Traceback (most recent call last):\n  File x\nKeyError: 7\n\tat org.apache")
    'KeyError: 7'
    >>> failure_reason("[STREAM_FAILED] Query failed.\nSQLSTATE: XXKST")
    '[STREAM_FAILED] Query failed.'
    >>> failure_reason("[STREAM_FAILED] Query terminated with exception: 'void org.apache.spark.A.<init>(int)' SQL")
    "a jar was built for another version of Spark; use the one for yours ('void org.apache.spark.A.<init>(int)')"
    """
    if misfit := _LINKAGE.search(message):
        detail = (misfit[1] or misfit[2]).strip()
        return f"a jar was built for another version of Spark; use the one for yours ({detail})"
    found: list[str] = _OURS.findall(message) or _PYTHON.findall(message)
    return found[-1].strip() if found else message.strip().partition("\n")[0]
