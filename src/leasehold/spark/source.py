"""The Spark data source: `spark.readStream.format("leasehold")`, and `spark.read` for a time range.

Spark creates these objects in several processes and pickles them. So they hold only options, until the driver's reader
process calls a method that only the driver calls. Two of these processes only check options and plan; they would take
most of their time to import what reads a stream. So that is imported by the methods that need it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from leasehold.archive.columns import SLICE, spark_ddl
from leasehold.core.exactly_once.query_offset import INITIAL_OFFSET
from leasehold.core.exactly_once.slice_limits import BatchLimits, deal_round_robin
from leasehold.errors import ConfigError
from leasehold.spark.options import SourceOptions, source_options
from leasehold.spark.query.local_lease_guard import current_jvm, require_shared_lease_table
from leasehold.spark.task_reports import TaskReports
from leasehold.spark.worker_process import SentenceFirst, hide_closed_connections

if TYPE_CHECKING:
    from leasehold.spark.query.driver import QueryDriver
    from leasehold.spark.query.pinned_slices import SlicePlan
    from leasehold.spark.query.time_range_read import ShardTimeRange

FORMAT = "leasehold"

hide_closed_connections()  # here, because Spark's processes run no code of ours before they import this module


class KinesisSource(DataSource):
    """A Kinesis stream, deaggregated, exactly once."""

    @SentenceFirst()
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._checked = source_options(dict(options))

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return FORMAT

    def schema(self) -> str:
        """The schema of the columns in the options."""
        return spark_ddl(self._checked.columns)

    def streamReader(self, schema: Any) -> KinesisStreamReader:  # noqa: ARG002, N802 - Spark's name and arguments
        """The reader for `spark.readStream`."""
        return KinesisStreamReader(self._checked)

    def reader(self, schema: Any) -> KinesisBatchReader:  # noqa: ARG002 - Spark's arguments
        """The reader for `spark.read`."""
        return KinesisBatchReader(self._checked)


@dataclass
class SlicePartition(InputPartition):
    """The slices that one task of a streaming query reads."""

    plans: list[SlicePlan]
    driver_jvm: str


@dataclass
class TimeRangePartition(InputPartition):
    """The time ranges that one task of a batch read reads."""

    parts: list[ShardTimeRange]


class KinesisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query. On the driver it is a member of the fleet; in tasks it reads slices."""

    def __init__(self, options: SourceOptions) -> None:
        # An error here would be hidden: Spark's process calls `stop` of the reader that it then does not have.
        self._options = options
        self._driver: QueryDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_driver": None}

    # -- on the driver -----------------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit that Spark shows and passes back. Further limits of the options apply too."""
        limits = self._options.limits
        if limits.records is not None:
            return ReadMaxRows(limits.records)
        assert limits.size_bytes is not None
        return ReadMaxBytes(limits.size_bytes)

    @SentenceFirst()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End the run at the tip of every shard."""
        self._start_driver().read_available_now()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The constant initial offset."""
        return dict(INITIAL_OFFSET)

    @SentenceFirst()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Plan the next batch. Returns `start` itself if there are no new records."""
        everything = isinstance(limit, ReadAllAvailable)
        limits = BatchLimits() if everything else self._limits(limit)
        planned = self._start_driver().plan(start, limits, wait_for_all=everything)
        return start if planned is start else dict(planned)

    @SentenceFirst()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition for each task of a batch."""
        return [SlicePartition(plans, current_jvm()) for plans in self._start_driver().slices(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: when Spark asks for the next plan, the batch before it is committed."""

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the lag of each shard: `sources[0].latestOffset` in the progress of the query."""
        return self._driver.report() if self._driver else None

    def stop(self) -> None:
        """Release the leases."""
        if self._driver is not None:
            # Spark closes the connection and also sends SIGTERM. The second of the two must not interrupt this call.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._driver.stop()

    def _stop_and_exit(self, _signal: int, _frame: object) -> None:
        self.stop()
        sys.exit(0)

    def _start_driver(self) -> QueryDriver:
        """Create the driver at the first call: constructors also run in processes that read nothing."""
        if self._driver is None:
            from leasehold.spark.query.driver import QueryDriver  # noqa: PLC0415 - see above

            _require_streaming(self._options)
            # Spark ends this process with two SIGTERMs. Without a handler, `stop` would not run.
            self._driver = QueryDriver(self._options)
            signal.signal(signal.SIGTERM, self._stop_and_exit)
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
        """Yield the rows of one task."""
        from leasehold.spark.query.task_reader import read_slices  # noqa: PLC0415 - see above

        assert isinstance(partition, SlicePartition)
        with SentenceFirst():
            require_shared_lease_table(self._options.connection, partition.driver_jvm)
            # Only the archive needs the reports, and only with this column.
            task = TaskReports.of_this_task() if SLICE in self._options.columns else TaskReports()
            yield from read_slices(partition.plans, self._options, task.write)


def _require_streaming(options: SourceOptions) -> None:
    options.require_application()
    if options.time_range.end_ms is not None:
        raise ConfigError(
            "endingTimestamp is an option of a batch read (spark.read); a streaming query has no end: remove it"
        )


class KinesisBatchReader(DataSourceReader):
    """The reader of a batch read: the records of a time range."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @SentenceFirst()
    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each task."""
        from leasehold.loop_thread import LoopThread  # noqa: PLC0415 - see above
        from leasehold.spark.query.time_range_read import list_time_ranges  # noqa: PLC0415

        now_ms = time.time_ns() // 1_000_000
        self._options.time_range.require_readable(now_ms)
        loop = LoopThread("leasehold-list")
        parts = loop.run(list_time_ranges(self._options, now_ms))
        tasks = self._options.partitions or os.cpu_count() or 1
        return [TimeRangePartition(each) for each in deal_round_robin(parts, tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if not isinstance(partition, TimeRangePartition):
            return  # Spark makes a task of its own if there is nothing to read
        from leasehold.spark.query.time_range_read import read_time_ranges  # noqa: PLC0415 - see above

        with SentenceFirst():
            yield from read_time_ranges(partition.parts, self._options)
