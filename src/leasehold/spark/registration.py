"""Makes the source and the sink known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `leasehold` and `leasehold-archive` formats of this session."""
    from leasehold.spark.archive_sink import ArchiveSink  # noqa: PLC0415 - pyspark is an extra
    from leasehold.spark.source import KinesisSource  # noqa: PLC0415

    spark.dataSource.register(KinesisSource)
    spark.dataSource.register(ArchiveSink)
