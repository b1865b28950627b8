"""Reads archived objects without any code of the archive: the truth about what the archive contains.

The layout is the one that docs/archive.md promises to other programs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from leasehold.core.model import LeaseKey
from leasehold.simulation.environment.ledger import RecordKey

_NAME: Final = re.compile(
    r"(\d{4}/\d\d/\d\d/\d\d/\d\d)/([^/]+)/(\d{56})\.(\d{10})-(\d{56})\.(\d{10})\.(parquet|jsonl)"
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


def read_archived_object(name: str, body: bytes) -> ArchivedObject | None:
    """Read an object. Returns None if its name is not that of an archived range."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    minute, shard, first, first_sub, last, last_sub, extension = match.groups()
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
    elif {_minute_of(row["approximateArrivalTimestamp"]) for row in rows} != {minute}:
        problem = "it has records of another minute"
    return ArchivedObject(name, minute, LeaseKey(shard), *ends, records, problem)


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
