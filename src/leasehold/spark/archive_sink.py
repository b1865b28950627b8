"""The archive as a sink of Structured Streaming: `df.writeStream.format("leasehold-archive").start("s3://bucket/prefix")`.

Exactly-once needs nothing from Spark's commit: a write task holds whole pinned ranges (`assemble_ranges` checks it), and
objects are named by range and created only if absent. So retries, speculative copies, and a batch that is replayed
after a crash all write the same objects, and `commit` has nothing left to do but to tell.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from leasehold.archive.archive import Archive, WriteReport
from leasehold.archive.columns import SLICE
from leasehold.archive.formats import IDENTITY_COLUMNS
from leasehold.archive.settings import ArchiveSettings
from leasehold.errors import ConfigError
from leasehold.spark.range_assembly import assemble_ranges

NAME: Final = "leasehold-archive"
LOGGER: Final = logging.getLogger("leasehold.spark")

# What each option sets. Spark knows no case in the names of options.
OPTIONS: Final[Mapping[str, str]] = {
    "path": "url",
    "prefix": "prefix",
    "fileFormat": "format",
    "compression": "compression",
    "region": "region",
    "profile": "profile",
    "roleArn": "role_arn",
    "roleExternalId": "role_external_id",
    "s3Endpoint": "s3_endpoint",
    "maxConcurrentPuts": "max_concurrent_puts",
}
# Other connectors' names.
ALIASES: Final[Mapping[str, str]] = {"awsprofile": "profile"}
# Meant for Spark itself, which passes them on.
OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})


def archive_settings(options: Mapping[str, str]) -> ArchiveSettings:
    """The settings that options of `writeStream` stand for; an unknown one is refused, with the nearest known."""
    known = {name.lower(): setting for name, setting in OPTIONS.items()} | dict(ALIASES)
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name.lower() in OF_SPARK:
            continue
        if name.lower() not in known:
            raise _unknown(name)
        given[known[name.lower()]] = value
    if "url" not in given:
        raise ConfigError(
            f"format({NAME!r}) has no path: .start('s3://bucket/prefix'), or .option('path', ...)"
        )
    if "max_concurrent_puts" in given:
        if not given["max_concurrent_puts"].isdecimal():
            raise ConfigError(f"maxConcurrentPuts={given['max_concurrent_puts']!r}: expected a whole number")
        given["max_concurrent_puts"] = int(given["max_concurrent_puts"])
    return ArchiveSettings(**given)


def _unknown(name: str) -> ConfigError:
    near = get_close_matches(name.lower(), [each.lower() for each in OPTIONS], n=1, cutoff=0.5)
    spelled = {each.lower(): each for each in OPTIONS}
    hint = f"did you mean {spelled[near[0]]}?" if near else f"expected some of {', '.join(OPTIONS)}"
    return ConfigError(f"option {name!r} is none of format({NAME!r}): {hint}")


def require_columns(names: list[str]) -> None:
    """Refuse a DataFrame that lacks what tells whole ranges from others."""
    missing = [name for name in (*IDENTITY_COLUMNS, SLICE) if name not in names]
    if missing:
        raise ConfigError(
            f"the archive needs the columns {', '.join(missing)}, which this DataFrame has not: read the stream with "
            '.option("columns", "archive"), and keep these columns; all others are yours to choose'
        )


@dataclass(frozen=True, slots=True)
class ArchiveCommit(WriterCommitMessage):
    """What one write task did."""

    report: WriteReport


class ArchiveSink(DataSource):
    """The sink, as Spark looks it up by name."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._settings = archive_settings(options)

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return NAME

    def streamWriter(self, schema: StructType, overwrite: bool) -> ArchiveStreamWriter:  # noqa: N802 - Spark's name
        """A writer for appending. An archive is never overwritten."""
        if overwrite:
            raise ConfigError(f"format({NAME!r}) only appends: use outputMode('append')")
        require_columns(schema.fieldNames())
        return ArchiveStreamWriter(self._settings)


class ArchiveStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query. Made anew for every batch, and again on every executor."""

    def __init__(self, settings: ArchiveSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[Any]) -> ArchiveCommit:
        """Write the ranges of one task; on an executor."""
        _spare_the_collector()
        loop, archive = _loop(), _archive(self._settings)
        return ArchiveCommit(loop.run_until_complete(_write_all(archive, iterator)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Tell what the batch wrote; on the driver."""
        reports = (message.report for message in messages if isinstance(message, ArchiveCommit))
        total = sum(reports, WriteReport())
        LOGGER.info(
            "archived batch=%d objects=%d rows=%d bytes=%d already_there=%d dropped_rows=%d",
            batchId,
            total.objects,
            total.rows,
            total.bytes,
            total.already_there,
            total.dropped_rows,
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing is taken back: what was written is right, and the next attempt finds it."""


async def _write_all(archive: Archive, batches: Iterator[Any]) -> WriteReport:
    # Rows reach this task after their lease session began, so all sessions are older than this call.
    return await archive.write(assemble_ranges(batches))


@cache
def _archive(settings: ArchiveSettings) -> Archive:
    """One a process: it remembers what it has found out about each shard."""
    return Archive.open(settings)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One a process: what archives wait on belongs to a loop."""
    return asyncio.new_event_loop()


@cache
def _spare_the_collector() -> None:
    """Spark collects garbage after every task; what was imported by now is none, and would cost more than the task."""
    gc.collect()
    gc.freeze()
