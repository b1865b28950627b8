"""The source as Spark sees it: `spark.readStream.format("leasehold")`, and `spark.read` for a stretch of time.

Spark makes these objects in several processes and pickles them, so they hold options and nothing else until the
driver's own reader process calls a method that only the driver calls.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from leasehold.archive.columns import spark_ddl
from leasehold.core.exactly_once.query_offset import INITIAL_OFFSET
from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.errors import ConfigError
from leasehold.spark.options import SourceOptions, source_options
from leasehold.spark.query.driver import QueryDriver
from leasehold.spark.query.local_lease_guard import current_jvm, require_shared_lease_table
from leasehold.spark.query.pinned_slices import SlicePlan
from leasehold.spark.query.task_reader import read_slices
from leasehold.spark.query.task_resources import LoopThread
from leasehold.spark.query.time_range_read import ShardTimeRange, grouped, list_time_ranges, read_time_ranges

FORMAT = "leasehold"


class KinesisSource(DataSource):
    """A Kinesis stream, deaggregated, exactly once."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._checked = source_options(dict(options))

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return FORMAT

    def schema(self) -> str:
        """The columns that were asked for."""
        return spark_ddl(self._checked.columns)

    def streamReader(self, schema: Any) -> KinesisStreamReader:  # noqa: ARG002, N802 - Spark's name and arguments
        """For `readStream`."""
        return KinesisStreamReader(self._checked)

    def reader(self, schema: Any) -> KinesisBatchReader:  # noqa: ARG002 - Spark's arguments
        """For `read`."""
        return KinesisBatchReader(self._checked)


@dataclass
class SlicePartition(InputPartition):
    """What one task of a streaming query reads."""

    plans: list[SlicePlan]
    driver_jvm: str


@dataclass
class TimeRangePartition(InputPartition):
    """What one task of a bounded read reads."""

    parts: list[ShardTimeRange]


class KinesisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's reader. On the driver it is a member of the fleet; in tasks it reads what it is given."""

    def __init__(self, options: SourceOptions) -> None:
        options.require_application()
        if options.ending_ms is not None:
            raise ConfigError(
                "endingTimestamp bounds a batch read (spark.read); a streaming query has no end"
            )
        self._options = options
        self._driver: QueryDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_driver": None}

    # -- on the driver -----------------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What a batch may take; other limits that the options name are kept besides."""
        limits = self._options.limits
        if limits.records is not None:
            return ReadMaxRows(limits.records)
        assert limits.size_bytes is not None
        return ReadMaxBytes(limits.size_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Let the run end at the tip of every shard."""
        self._started().read_available_now()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """A constant, however often it is asked for."""
        return dict(INITIAL_OFFSET)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The plan of the next batch; `start` itself when nothing is new."""
        everything = isinstance(limit, ReadAllAvailable)
        limits = BatchLimits() if everything else self._limits(limit)
        planned = self._started().plan(start, limits, wait_for_all=everything)
        return start if planned is start else dict(planned)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        return [SlicePartition(plans, current_jvm()) for plans in self._started().slices(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the next plan knows that the batch before it is committed."""

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """How far behind each shard is: `sources[0].latestOffset` in the query's progress."""
        return self._driver.report() if self._driver else None

    def stop(self) -> None:
        """Give the leases back."""
        if self._driver is not None:
            # Spark both closes our connection and sends SIGTERM: whichever comes second must not cut this short.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._driver.stop()

    def _leave(self, _signal: int, _frame: object) -> None:
        self.stop()
        sys.exit(0)

    def _started(self) -> QueryDriver:
        """The driver's half, made by the first call: a constructor also runs in processes that read nothing."""
        if self._driver is None:
            # Spark ends this process by SIGTERM, twice; without a handler, `stop` would not be called.
            self._driver = QueryDriver(self._options)
            signal.signal(signal.SIGTERM, self._leave)
        return self._driver

    def _limits(self, limit: ReadLimit) -> BatchLimits:
        own = self._options.limits
        if isinstance(limit, ReadMaxRows):
            return replace(own, records=limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            return replace(own, size_bytes=limit.max_bytes)
        return own

    # -- in a task ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, SlicePartition)
        require_shared_lease_table(self._options.connection, partition.driver_jvm)
        return read_slices(partition.plans, self._options)


class KinesisBatchReader(DataSourceReader):
    """A stretch of a stream, once."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        loop = LoopThread("leasehold-list")
        parts = loop.run(list_time_ranges(self._options, time.time_ns() // 1_000_000))
        return [
            TimeRangePartition(each)
            for each in grouped(parts, self._options.partitions or os.cpu_count() or 1)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, TimeRangePartition)
        return read_time_ranges(partition.parts, self._options)
