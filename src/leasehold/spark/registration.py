"""Registers the source and the sink in a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the formats `leasehold` and `leasehold-archive`."""
    from leasehold.spark.archive_sink import ArchiveSink  # noqa: PLC0415 - pyspark is an extra
    from leasehold.spark.source import KinesisSource  # noqa: PLC0415

    spark.dataSource.register(KinesisSource)
    spark.dataSource.register(ArchiveSink)
