"""The archive as a Spark source: `spark.read.format("leasehold-archive").load("s3://bucket/prefix")`.

Objects of other minutes and shards are skipped by their names: by the options, and by filters if Spark passes them
(`filterPushdown`). Spark evaluates every filter again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from leasehold.archive.columns import ARRIVAL, SHARD_ID, spark_ddl
from leasehold.archive.decoding import RECORD_COLUMNS
from leasehold.archive.reading import (
    ALL_TIME,
    TimeSpan,
    batches_ahead,
    list_objects,
    open_archive,
    read_shard,
    time_span,
)
from leasehold.archive.settings import ArchiveSettings
from leasehold.archive.shard_rows import ArchiveStore
from leasehold.config import values
from leasehold.core.exactly_once.archive_reading import Section, plan_sections
from leasehold.core.exactly_once.object_keys import ObjectKey
from leasehold.core.model import ShardId
from leasehold.core.time_text import parse_time
from leasehold.errors import ConfigError
from leasehold.loop_thread import LoopThread
from leasehold.spark.worker_process import SentenceFirst

# The options of a read, beside those of the archive's store.
READ_OPTIONS: Final = ("startingTimestamp", "endingTimestamp", "shards", "columns", "filterPushdown")
BYTES_PER_TASK: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ArchiveSelection:
    """What to read of an archive."""

    settings: ArchiveSettings
    span: TimeSpan = ALL_TIME
    shards: tuple[str, ...] | None = None
    columns: tuple[str, ...] = RECORD_COLUMNS
    with_filters: bool = False


def archive_selection(settings: ArchiveSettings, options: Mapping[str, str]) -> ArchiveSelection:
    """Parse the options of a read. The caller has parsed the others."""
    known = {name.lower(): name for name in READ_OPTIONS}
    given = {known[name.lower()]: text for name, text in options.items() if name.lower() in known}
    span = time_span(given.get("startingTimestamp"), given.get("endingTimestamp"))
    shards = tuple(filter(None, map(str.strip, given["shards"].split(",")))) if "shards" in given else None
    return ArchiveSelection(
        settings,
        span,
        shards,
        _columns(given["columns"]) if "columns" in given else RECORD_COLUMNS,
        values.boolean(given.get("filterPushdown", "false")),
    )


def _columns(text: str) -> tuple[str, ...]:
    known = {name.lower(): name for name in RECORD_COLUMNS}
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names) or not known.keys() >= set(names):
        raise ConfigError(
            f"option columns={text!r}: expected a list of {', '.join(RECORD_COLUMNS)}, each once; for columns that "
            "your program has added, give their schema with .schema(...)"
        )
    return tuple(known[name] for name in names)


def selection_ddl(selection: ArchiveSelection) -> str:
    """The schema of a read without `.schema(...)`, as Spark DDL."""
    return spark_ddl(selection.columns)


@dataclass
class SectionPartition(InputPartition):
    """What one task reads: a section of a shard, with the objects that were listed for it."""

    shard: ShardId
    section: Section
    objects: dict[ObjectKey, int]


class ArchiveReader(DataSourceReader):
    """Reads an archive, with a task for each section of a shard."""

    def __init__(self, selection: ArchiveSelection, schema: StructType) -> None:
        self._selection = selection
        self._schema = schema

    @SentenceFirst()
    def partitions(self) -> Sequence[InputPartition]:
        """List the archive, and divide each shard into sections."""
        chosen = self._selection
        listing = list_objects(_store(chosen.settings), chosen.span, chosen.shards)
        return [
            SectionPartition(shard, section, {key: size for key, size in objects.items() if section.has(key)})
            for shard, objects in _loop().run(listing).items()
            for section in plan_sections(objects, BYTES_PER_TASK)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if not isinstance(partition, SectionPartition):
            return  # Spark makes a task of its own if there is nothing to read
        chosen, schema = self._selection, to_arrow_schema(self._schema, timezone="UTC")

        async def tables() -> AsyncGenerator[Any, None]:
            store = _store(chosen.settings)
            rows = read_shard(
                store,
                partition.shard,
                chosen.span,
                schema.names,
                objects=partition.objects,
                section=partition.section,
            )
            async with aclosing(rows) as found:
                async for table in found:
                    yield with_schema(table, schema)

        with SentenceFirst():
            yield from batches_ahead(_loop(), tables)


class FilteringArchiveReader(ArchiveReader):
    """Also skips objects by filters on the arrival time and on the shard.

    Spark refuses a reader with this method unless `spark.sql.python.filterPushdown.enabled` is set. So it is a class
    of its own, for reads with the option `filterPushdown`.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the selection. All filters are returned, so Spark evaluates them for each row."""
        for each in filters:
            self._selection = narrow(self._selection, each)
        return filters


def narrow(selection: ArchiveSelection, condition: Filter) -> ArchiveSelection:
    """The selection without what a filter excludes by the names of objects. Other filters change nothing."""
    attribute, value = getattr(condition, "attribute", None), getattr(condition, "value", None)
    if attribute == (SHARD_ID,) and isinstance(condition, EqualTo | In):
        wanted: list[str] = list(condition.value) if isinstance(condition, In) else [condition.value]
        shards = [each for each in wanted if selection.shards is None or each in selection.shards]
        return replace(selection, shards=tuple(shards))
    if attribute != (ARRIVAL,) or not isinstance(value, datetime) or value.tzinfo is None:
        return selection
    ms, span = parse_time(value), selection.span
    if isinstance(condition, GreaterThan | GreaterThanOrEqual | EqualTo):
        span = replace(span, start_ms=max(span.start_ms or 0, ms))
    if isinstance(condition, LessThan | LessThanOrEqual | EqualTo):
        # Arrival times of a record have milliseconds, a filter has microseconds.
        span = replace(span, end_ms=min(ms + 1 if span.end_ms is None else span.end_ms, ms + 1))
    return replace(selection, span=span)


def with_schema(table: Any, schema: Any) -> Any:
    """The table with exactly these columns and types. A column that an object does not have is null."""
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


@cache
def _store(settings: ArchiveSettings) -> ArchiveStore:
    return open_archive(settings)


@cache
def _loop() -> LoopThread:
    return LoopThread("leasehold-archive")
