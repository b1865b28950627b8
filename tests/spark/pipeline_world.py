"""A stream, its lease table and an archive for tests of queries, with checks of the archive."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq

from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows, TableSettings
from leasehold.core.model import Lease, LeaseKey
from leasehold.errors import NotFoundError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.local import LocalKinesis
from tests.fleet.record_producer import RecordProducer
from tests.servers import Server
from tests.spark.gates import SINK, SOURCE, Gates

T = TypeVar("T")

PATIENCE_S = 400.0
# The shortest time that works on a busy machine.
FAILOVER = "5s"


@dataclass
class PipelineWorld:
    """One application on one stream. Names are unique, so that tests can share servers."""

    name: str
    folder: Path
    kinesis: LocalKinesis
    dynamodb: Server
    shards: int = 4
    production: RecordProducer = field(init=False)

    def __post_init__(self) -> None:
        client = self.kinesis.client()
        client.create_stream(StreamName=self.name, ShardCount=self.shards)
        client.get_waiter("stream_exists").wait(StreamName=self.name, WaiterConfig={"Delay": 1})
        self.production = RecordProducer(client, self.name, random.Random(self.name))
        self.archive.mkdir(parents=True)
        self.gates_folder = self.folder / "gates"
        self.gates_folder.mkdir(exist_ok=True)

    @property
    def archive(self) -> Path:
        return self.folder / self.name / "archive"

    @property
    def checkpoint(self) -> Path:
        return self.folder / self.name / "checkpoint"

    @property
    def gates(self) -> Gates:
        return Gates(self.gates_folder, self.name)

    def put(self, count: int = 200) -> None:
        """Put records, half of them in aggregates."""
        self.production.put(plain=count // 2, aggregated=count - count // 2)

    def source(self, **changes: str) -> dict[str, str]:
        """The options of the source."""
        return {
            "streamName": self.name,
            "applicationName": self.name,
            "region": "us-east-1",
            "endpointUrl": self.kinesis.endpoint_url,
            "dynamodbEndpointUrl": self.dynamodb.url,
            "startingPosition": "trim_horizon",
            "columns": "archive",
            "pollInterval": "200ms",
            "failoverAfter": FAILOVER,
            # A leader delays the first assignment. The interop tests cover queries with a leader.
            "mode": "peer",
        } | changes

    # -- queries in this process -------------------------------------------------------------------------------

    def load(self, spark: Any, **changes: str) -> Any:
        """The stream as a DataFrame."""
        return spark.readStream.format(SOURCE).options(**self.source(**changes)).load()

    def start(self, rows: Any, *, to_the_end: bool = True, checkpoint: Path | None = None) -> Any:
        """Start a query that archives a DataFrame."""
        writer = rows.writeStream.format(SINK).option(
            "checkpointLocation", str(checkpoint or self.checkpoint)
        )
        writer = writer.trigger(availableNow=True) if to_the_end else writer
        return writer.start(str(self.archive))

    def read_all(self, spark: Any, *, checkpoint: Path | None = None, **changes: str) -> None:
        """Archive all available records."""
        query = self.start(self.load(spark, **changes), checkpoint=checkpoint)
        assert query.awaitTermination(PATIENCE_S), "the query does not end"

    # -- leases ------------------------------------------------------------------------------------------------

    def with_table(self, work: Callable[[LeaseTable], Awaitable[T]]) -> T:
        """Work on the lease table from outside the query."""

        async def run() -> T:
            client = self.dynamodb.client("dynamodb")
            table = LeaseTable(DynamoDbRows(client, self.name, settings=TableSettings(with_index=False)))
            try:
                return await work(table)
            finally:
                await table.close()

        return asyncio.run(run())

    def lease(self, key: LeaseKey) -> Lease:
        """Read a lease."""
        lease = self.with_table(lambda table: table.get(key))
        assert lease is not None
        return lease

    def leases(self) -> dict[LeaseKey, Lease]:
        """Read all leases. Returns none if the table does not exist."""
        try:
            listing = self.with_table(lambda table: table.list())
        except NotFoundError:
            return {}
        return {lease.key: lease for lease in listing.leases}

    # -- checks of the archive --------------------------------------------------------------------------------

    def archived(self) -> list[int]:
        """The numbers of all archived records. Fails if a position is archived twice."""
        names = ["shardId", "sequenceNumber", "subSequenceNumber", "data"]
        rows: list[tuple[Any, ...]] = []
        for file in self.archive.rglob("*.parquet"):
            table = pq.ParquetFile(file).read(columns=names)
            rows += zip(*(table[name].to_pylist() for name in names), strict=True)
        doubled = [position for position, count in Counter(row[:3] for row in rows).items() if count > 1]
        assert not doubled, f"{len(doubled)} positions are archived more than once, e.g. {doubled[0]}"
        return [int(row[3]) for row in rows]

    def has_all(self) -> bool:
        """True if the archive contains all records that were put."""
        return set(self.archived()) == set(range(self.production.produced))

    def check(self, without: frozenset[int] = frozenset()) -> None:
        """Assert that the archive contains each record once, except `without`."""
        numbers = Counter(self.archived())
        missing = set(range(self.production.produced)) - without - set(numbers)
        assert not missing, f"{len(missing)} records are not archived, e.g. {min(missing)}"
        doubled = {number for number, count in numbers.items() if count > 1}
        assert not doubled, f"{len(doubled)} records are archived more than once, e.g. {min(doubled)}"
        assert not without & set(numbers), "the archive contains trimmed records"
