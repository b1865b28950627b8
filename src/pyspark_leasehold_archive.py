"""Provides the archive sink to Spark, which searches every module named `pyspark_...` for a `DefaultSource`.

If one of these modules fails to load, Spark ignores all of them. So this module always loads; if a library is missing,
it has no `DefaultSource`.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from leasehold.spark.archive_sink import ArchiveSink  # noqa: PLC0415 - only at its first use
        except ImportError as error:
            raise AttributeError(name) from error
        return ArchiveSink
    raise AttributeError(name)
