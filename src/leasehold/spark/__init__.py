"""The Spark source and archive sink, both exactly once: `session(...)`, then `format("leasehold")`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from leasehold.spark.registration import register as register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
