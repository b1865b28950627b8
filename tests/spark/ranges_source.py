"""A Spark source of generated pinned ranges, for tests of sinks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from leasehold.archive.columns import ALL_COLUMNS, BatchSize, record_batches, spark_ddl
from leasehold.core.model import ShardId
from leasehold.core.record import UserRecord

BATCHES, RANGE_ROWS, SHARDS = 3, 1_000, 3
FIRST_MS, STEP_MS = 1_700_000_000_000, 90  # a range spans one and a half minutes


class RangesPartition(InputPartition):
    """The shards of one task, and the number of its range."""

    def __init__(self, shards: Sequence[int], batch: int) -> None:
        super().__init__(None)
        self.shards, self.batch = shards, batch


class RangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Yields one range for each shard and batch."""

    def __init__(self, columns: Sequence[str], session: int) -> None:
        self.columns, self.session = columns, session

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"batch": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        pass

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"batch": start["batch"] + 1} if start["batch"] < BATCHES else start

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[RangesPartition]:
        return [RangesPartition([0, 1], start["batch"]), RangesPartition([2], start["batch"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangesPartition)
        for shard in partition.shards:
            yield from record_batches(
                range_of_records(partition.batch),
                stream="orders",
                shard=ShardId(f"shardId-{shard:012}"),
                columns=self.columns,
                session=self.session,
                size=BatchSize(300),
            )


class RangesSource(DataSource):
    """format("ranges"), with the options `columns` and `session`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self.columns = options.get("columns", ",".join(ALL_COLUMNS)).split(",")

    @classmethod
    def name(cls) -> str:
        return "ranges"

    def schema(self) -> str:
        return spark_ddl(self.columns)

    def streamReader(self, schema: Any) -> RangesReader:  # noqa: N802 - Spark's name
        return RangesReader(self.columns, int(self.options["session"]))


def range_of_records(batch: int) -> list[UserRecord]:
    """The records of a batch. They are the same for every shard."""
    numbers = range(batch * RANGE_ROWS, (batch + 1) * RANGE_ROWS)
    return [
        UserRecord(b"%d" % number, f"k{number}", f"{number + 1}", FIRST_MS + number * STEP_MS)
        for number in numbers
    ]
