"""The Spark source and archive sink, both exactly once: `session(...)`, then `format("leasehold")`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from leasehold.spark.registration import register as register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from leasehold.archive.compaction import CompactionReport, CompactionSettings
    from leasehold.archive.settings import ArchiveSettings


def session(
    name: str = "leasehold", settings: Mapping[str, str] | None = None, *, checkpoint: str = ""
) -> AbstractContextManager[SparkSession]:
    """Start a Spark session that begins with the block and ends with it, as `leasehold pipeline` does.

    It finds Java, starts quickly, listens on this machine only, and its Python processes start reliably on a loaded
    machine. `settings` are Spark's own and take precedence. `checkpoint` is the checkpoint location of the query, if it
    has one: files in a local folder are written faster.
    """
    from leasehold.spark.pipeline.session import spark_session  # noqa: PLC0415 - pyspark is an extra, and slow

    return spark_session(name, settings or {}, checkpoint=checkpoint)


def compact_archive(
    spark: SparkSession, archive: ArchiveSettings, settings: CompactionSettings | None = None
) -> CompactionReport:
    """Compact a large archive on the executors of a session, as `leasehold archive compact` does on one machine.

    The driver lists the objects, keeps the lock of the archive, and deletes; each task merges one group of objects.
    """
    from leasehold.spark.archive_compaction import compact_with_spark  # noqa: PLC0415 - pyarrow is slow

    return compact_with_spark(spark, archive, settings)


def last_positions(batch: DataFrame) -> dict[tuple[str, str], str]:
    """The position of the last record of each (stream, shard) in a batch of `foreachBatch`.

    A position is a text; texts sort in the order of the records. Store them in the transaction that stores the rows.
    """
    from leasehold.spark.record_positions import find_last_positions  # noqa: PLC0415 - pyarrow is slow

    return find_last_positions(batch)


def rows_after(batch: DataFrame, positions: Mapping[tuple[str, str], str]) -> DataFrame:
    """The rows of a batch that come after stored positions: the rows that a sink does not have yet.

    `positions` are those of `last_positions`. All rows of a shard without a position are new.
    """
    from leasehold.spark.record_positions import keep_rows_after  # noqa: PLC0415 - pyarrow is slow

    return keep_rows_after(batch, positions)
