"""Lets Spark find the archive by itself: it looks into every module named `pyspark_...` for a `DefaultSource`.

Spark gives up on all such modules when one of them fails to load, so this one never does: where a library is missing,
it has no archive.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from leasehold.spark.archive_sink import ArchiveSink  # noqa: PLC0415 - only when it is asked for
        except ImportError as error:
            raise AttributeError(name) from error
        return ArchiveSink
    raise AttributeError(name)
