"""The archive as a Spark sink: `df.writeStream.format("leasehold-archive").start("s3://bucket/prefix")`.

Exactly-once does not depend on Spark's commit. A write task holds whole pinned ranges (`assemble_ranges` checks this),
and objects are named by range and created only if absent. So retries, speculative copies and the replay of a batch
after a crash all write the same objects. `commit` writes nothing: it refuses the batch if a range is missing.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from leasehold.archive.archive import Archive, WriteReport
from leasehold.archive.columns import SLICE
from leasehold.archive.formats import IDENTITY_COLUMNS
from leasehold.archive.routing import RangeWriter, open_writer
from leasehold.archive.rows import PinnedRange
from leasehold.archive.settings import ArchiveSettings
from leasehold.config.did_you_mean import did_you_mean
from leasehold.errors import ConfigError
from leasehold.spark.archive_source import (
    READ_OPTIONS,
    ArchiveReader,
    FilteringArchiveReader,
    archive_selection,
    selection_ddl,
)
from leasehold.spark.delivery_reports import RangeName
from leasehold.spark.range_assembly import assemble_ranges, range_name, require_delivered
from leasehold.spark.task_reports import TaskReports
from leasehold.spark.worker_process import SentenceFirst, hide_closed_connections

hide_closed_connections()  # as in `source`

NAME: Final = "leasehold-archive"
LOGGER: Final = logging.getLogger("leasehold.spark")

# The setting of each option. Spark ignores case in option names.
OPTIONS: Final[Mapping[str, str]] = {
    "path": "url",
    "prefix": "prefix",
    "layout": "layout",
    "partitionColumn": "partition_column",
    "errorColumn": "error_column",
    "errorPrefix": "error_prefix",
    "fileFormat": "format",
    "compression": "compression",
    "region": "region",
    "profile": "profile",
    "roleArn": "role_arn",
    "roleExternalId": "role_external_id",
    "s3Endpoint": "s3_endpoint",
    "maxConcurrentPuts": "max_concurrent_puts",
}
# Names of other connectors, in lower case.
ALIASES: Final[Mapping[str, str]] = {"awsprofile": "profile"}
# Options of Spark itself, which it also passes to the sink.
SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})


def archive_settings(options: Mapping[str, str]) -> ArchiveSettings:
    """Convert the options that name and describe the archive to settings. Raises ConfigError for an unknown option."""
    known = {name.lower(): setting for name, setting in OPTIONS.items()} | dict(ALIASES)
    others = SPARK_OPTIONS | {name.lower() for name in READ_OPTIONS}
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name.lower() in others:
            continue
        if name.lower() not in known:
            raise _unknown(name)
        given[known[name.lower()]] = value
    if "url" not in given:
        raise ConfigError(
            f"format({NAME!r}) has no path: .start('s3://bucket/prefix') or .load('s3://bucket/prefix')"
        )
    if "max_concurrent_puts" in given:
        if not given["max_concurrent_puts"].isdecimal():
            raise ConfigError(f"maxConcurrentPuts={given['max_concurrent_puts']!r}: expected a whole number")
        given["max_concurrent_puts"] = int(given["max_concurrent_puts"])
    return ArchiveSettings(**given)


def _unknown(name: str) -> ConfigError:
    known = [*OPTIONS, *READ_OPTIONS]
    hint = did_you_mean(name, known, otherwise=f"expected one of {', '.join(known)}")
    return ConfigError(f"format({NAME!r}) has no option {name!r}: {hint}")


def require_columns(names: list[str], settings: ArchiveSettings) -> None:
    """Raise ConfigError if a DataFrame lacks the columns that identify records and ranges, or that divide them."""
    for column in (settings.partition_column, settings.error_column):
        if column is not None and column not in names:
            raise ConfigError(
                f"this DataFrame has no column {column!r}, by which the archive divides its rows"
            )
    missing = [name for name in (*IDENTITY_COLUMNS, SLICE) if name not in names]
    if missing:
        raise ConfigError(
            f"the archive needs the columns {', '.join(missing)}, which this DataFrame lacks: read the stream with "
            '.option("columns", "archive"), and keep these columns; you may drop or add others'
        )


@dataclass(frozen=True, slots=True)
class ArchiveCommit(WriterCommitMessage):
    """The result of one write task."""

    report: WriteReport
    delivered: frozenset[RangeName] = frozenset()  # what the source has delivered to the task
    received: frozenset[RangeName] = frozenset()  # what has reached the sink


class ArchiveSink(DataSource):
    """The data source that Spark finds by its name: the sink of a query, and the source of a batch read."""

    @SentenceFirst()
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._settings = archive_settings(options)
        self._options = dict(options)

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return NAME

    @SentenceFirst()
    def schema(self) -> str:
        """The schema of a read without one of its own."""
        return selection_ddl(archive_selection(self._settings, self._options))

    @SentenceFirst()
    def reader(self, schema: StructType) -> ArchiveReader:
        """Create the reader for `spark.read`."""
        selection = archive_selection(self._settings, self._options)
        return (FilteringArchiveReader if selection.with_filters else ArchiveReader)(selection, schema)

    @SentenceFirst()
    def streamWriter(self, schema: StructType, overwrite: bool) -> ArchiveStreamWriter:  # noqa: N802 - Spark's name
        """Create the writer. Refuses to overwrite an archive."""
        if overwrite:
            raise ConfigError(f"format({NAME!r}) only appends: use outputMode('append')")
        only_for_reads = [name for name in self._options if name.lower() in map(str.lower, READ_OPTIONS)]
        if only_for_reads:
            raise ConfigError(
                f"format({NAME!r}) does not write with option {only_for_reads[0]}: it selects what spark.read reads"
            )
        require_columns(schema.fieldNames(), self._settings)
        return ArchiveStreamWriter(self._settings)


class ArchiveStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query. Spark creates it for each batch, and again on each executor."""

    def __init__(self, settings: ArchiveSettings) -> None:
        self._settings = settings

    @SentenceFirst()
    def write(self, iterator: Iterator[Any]) -> ArchiveCommit:
        """Write the ranges of one task. Runs on an executor."""
        _freeze_garbage_collector()
        loop, archive, received = _loop(), _archive(self._settings), set[RangeName]()
        report = loop.run_until_complete(_write_all(archive, iterator, received))
        # After the last row: only then the report of the source is complete.
        return ArchiveCommit(report, TaskReports.of_this_task().read(), frozenset(received))

    @SentenceFirst()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Refuse a batch without some of the delivered ranges, and log what it wrote. Runs on the driver."""
        done = [message for message in messages if isinstance(message, ArchiveCommit)]
        delivered, received = (
            frozenset[RangeName]().union(*sets)
            for sets in ((each.delivered for each in done), (each.received for each in done))
        )
        require_delivered(delivered, received)
        total = sum((each.report for each in done), WriteReport())
        LOGGER.info(
            "archived batch=%d objects=%d rows=%d bytes=%d already_there=%d dropped_rows=%d unchecked_ranges=%d",
            batchId,
            total.objects,
            total.rows,
            total.bytes,
            total.already_there,
            total.dropped_rows,
            len(received - delivered),
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: the written objects are correct, and the next attempt finds them."""


async def _write_all(archive: RangeWriter, batches: Iterator[Any], received: set[RangeName]) -> WriteReport:
    def note_ranges() -> Iterator[PinnedRange]:
        for each in assemble_ranges(batches):
            received.add(range_name(each))
            yield each

    # Rows reach this task after their lease session began, so all sessions are older than this call.
    return await archive.write(note_ranges())


@cache
def _archive(settings: ArchiveSettings) -> RangeWriter:
    """The archive of this process, which caches what it learned about each shard."""
    return open_writer(settings, Archive.open)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process. The locks of archives belong to it."""
    return asyncio.new_event_loop()


@cache
def _freeze_garbage_collector() -> None:
    """Exclude imported modules from garbage collection. Spark collects after every task, which would take longer than
    the task.
    """
    gc.collect()
    gc.freeze()
