"""Reads archived objects without any code of the archive: the truth about what the archive contains.

The layout is the one that docs/archive.md promises to other programs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from leasehold.core.model import LeaseKey
from leasehold.simulation.environment.ledger import RecordKey
from leasehold.simulation.environment.process import SimulatedProcess

_NAME: Final = re.compile(
    r"(?:stream=([^/]+)/)?(\d{4}/\d\d/\d\d/\d\d/\d\d)/([^/]+)/(\d{56})\.(\d{10})-(\d{56})\.(\d{10})"
    r"(?:\.since-(\d{12}))?\.(parquet|jsonl)"
)
_COLUMNS: Final = ("shardId", "sequenceNumber", "subSequenceNumber", "approximateArrivalTimestamp")
MARKER: Final = "_leasehold.json"


@dataclass(frozen=True, slots=True)
class ArchivedObject:
    """One object: what its name says, and the records in it."""

    name: str
    minute: str
    shard: LeaseKey
    first: RecordKey
    last: RecordKey
    records: tuple[RecordKey, ...]
    problem: str | None  # how its content differs from its name
    since: str | None = None  # the first minute of a compacted object

    def replaces(self, other: ArchivedObject) -> bool:
        """Whether readers ignore another object because of this one."""
        if self.since is None or self.shard != other.shard or self.name == other.name:
            return False
        is_within = self.first <= other.first and other.last <= self.last
        return is_within and self.since <= (other.since or other.minute) and other.minute <= self.minute


@dataclass(frozen=True, slots=True)
class ArchiveRead:
    """What a process got when it read the whole archive."""

    by: SimulatedProcess
    before: frozenset[tuple[LeaseKey, RecordKey]]  # the records that were archived when it began
    records: Sequence[tuple[LeaseKey, RecordKey]]


def visible_objects(objects: Iterable[ArchivedObject]) -> list[ArchivedObject]:
    """The objects that a reader reads: those that no compacted object replaces."""
    given = list(objects)
    compacted = [each for each in given if each.since is not None]
    return [each for each in given if not any(large.replaces(each) for large in compacted)]


def read_archived_object(
    name: str, body: bytes, key_of: Callable[[str, str], LeaseKey] = lambda _, shard: LeaseKey(shard)
) -> ArchivedObject | None:
    """Read an object. Returns None if its name is not that of an archived range.

    `key_of` returns the key of a shard of one of several streams.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    stream, minute, shard, first, first_sub, last, last_sub, digits, extension = match.groups()
    since = digits and f"{digits[:4]}/{digits[4:6]}/{digits[6:8]}/{digits[8:10]}/{digits[10:]}"
    rows = _parquet_rows(body) if extension == "parquet" else [json.loads(line) for line in body.splitlines()]
    records = tuple((int(row["sequenceNumber"]), row["subSequenceNumber"]) for row in rows)
    ends = (int(first), int(first_sub)), (int(last), int(last_sub))
    problem = None
    if not records or (records[0], records[-1]) != ends:
        problem = "its first and last record are not those of its name"
    elif list(records) != sorted(set(records)):
        problem = "its records are out of order"
    elif {row["shardId"] for row in rows} != {shard}:
        problem = "it has records of another shard"
    else:
        minutes = sorted(_minute_of(row["approximateArrivalTimestamp"]) for row in rows)
        if (minutes[0], minutes[-1]) != (since or minute, minute):
            problem = "it has records of another minute"
    key = LeaseKey(shard) if stream is None else key_of(stream, shard)
    return ArchivedObject(name, minute, key, *ends, records, problem, since)


def _parquet_rows(body: bytes) -> list[dict[str, Any]]:
    # Imported here: a simulation without an archive runs without pyarrow.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    table = pq.read_table(pa.BufferReader(body), columns=list(_COLUMNS), use_threads=False)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _minute_of(arrived: datetime | str) -> str:
    moment = datetime.fromisoformat(arrived) if isinstance(arrived, str) else arrived
    return f"{moment.astimezone(UTC):%Y/%m/%d/%H/%M}"
