"""Lets Spark find the source by itself: it looks into every module named `pyspark_...` for a `DefaultSource`.

Spark gives up on all such modules when one of them fails to load, so this one never does: where a library is missing,
it has no source.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from leasehold.spark.source import KinesisSource  # noqa: PLC0415 - only when it is asked for
        except ImportError as error:
            raise AttributeError(name) from error
        return KinesisSource
    raise AttributeError(name)
