"""A query of several streams, on a virtual clock: the shipped run of a query, and a model of Spark's logs and sink.

Both streams have shards with the same ids.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.adapters.memory.stream import MemoryFanOut, MemoryStream
from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.exactly_once.query_offset import INITIAL_OFFSET
from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.core.leases.lease_row import lease_from_row
from leasehold.core.model import Shard, ShardId, StreamIdentifier
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.errors import (
    AccessDeniedError,
    ConfigError,
    NotFoundError,
    OffsetMismatchError,
    RecreatedStreamError,
)
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.stream_consumer import StreamConsumer
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.writing import PutRequest
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from leasehold.spark.options import SourceOptions, source_options
from leasehold.spark.query.batch_load import BatchLoad
from leasehold.spark.query.pinned_slices import PinnedSlice, ReaderPorts, SlicePlan, fetch_and_pin
from leasehold.spark.query.query_member import QueryPorts
from leasehold.spark.query.query_run import QueryRun
from leasehold.spark.query.time_range_read import list_in_streams

LIMITS = BatchLimits(records=10)
FIRST = ShardId("shardId-000000000000")
HASH_KEYS = 1 << 128


def options(**given: str) -> SourceOptions:
    common = {"applicationName": "billing", "mode": "peer", "startingPosition": "trim_horizon"}
    return source_options(common | given)


BOTH = options(streamName="orders,returns")
ORDERS_ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"


class NamedByHand(MemoryStream):
    """A stream whose identifier the options give, so nobody asks Kinesis for it."""

    async def get_identifier(self) -> StreamIdentifier:
        """The identifier of the options. Its time is not that of the stream."""
        return StreamIdentifier(f"{self._service.account.id}:{self._name}:1")


class NotAllowed(MemoryStream):
    """A stream that the query may describe, and whose shards it may not list."""

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        """Refuse the call."""
        raise AccessDeniedError(f"stream {self._name}, list_shards: not authorized")


@dataclass(frozen=True)
class NoBatchEnds:
    """Records no end of a batch."""

    def last_committed(self) -> GenerationId | None:
        return None

    def last_end_ms(self) -> int | None:
        return None


@dataclass
class StreamsWorld:
    """Two streams, one lease table, one checkpoint location, and a sink that keeps the first commit of each batch."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    offsets: list[Mapping[str, Any]] = field(default_factory=lambda: [INITIAL_OFFSET])
    commits: int = 0
    batches: dict[int, list[tuple[str, bytes]]] = field(default_factory=dict)
    produced: Counter[tuple[str, bytes]] = field(default_factory=Counter)
    replaced: dict[str, MemoryStream] = field(default_factory=dict)  # streams that behave in another way

    def __post_init__(self) -> None:
        self.service = KinesisModel()
        for name in ("orders", "returns"):
            self.service.create_stream(self.clock.wall_ms(), name, shard_count=2)
        self.rows = MemoryRows()
        self._rng = random.Random(5)
        self._numbers = itertools.count()

    def stream(self, name: str) -> MemoryStream:
        return self.replaced.get(name) or MemoryStream(self.service, name, self.clock)

    def consumer(self, name: str, chosen: SourceOptions) -> StreamConsumer:
        return StreamConsumer(
            MemoryFanOut(self.service, name, self.clock),
            chosen.fan_out,
            stream=name,
            application=chosen.application,
            clock=self.clock,
            rng=random.Random(2),
            observe=lambda _: None,
        )

    def put(self, count: int, *names: str) -> None:
        """Put records into the streams, each with a payload of its own."""
        for name in names or ("orders", "returns"):
            for _ in range(count):
                data = b"%d" % next(self._numbers)
                key = self._rng.randrange(HASH_KEYS)
                self.service.put_record(self.clock.wall_ms(), name, PutRequest("k", data, key))
                self.produced[name, data] += 1

    def run(self, chosen: SourceOptions) -> QueryRun:
        """A run of the query's driver."""
        ports = QueryPorts(
            streams={name: self.stream(name) for name in chosen.names},
            table=LeaseTable(self.rows),
            clock=self.clock,
            rng=random.Random(1),
            observe=lambda _: None,
            load=BatchLoad(self.clock, NoBatchEnds()),
            consumers=[self.consumer(name, chosen) for name in chosen.names if chosen.fan_out.is_fan_out],
        )
        return QueryRun(chosen, ports, lambda: "00c0ffee")

    async def fetch(self, plan: SlicePlan) -> PinnedSlice | None:
        ports = ReaderPorts(
            stream=self.stream(plan.stream),
            table=LeaseTable(self.rows),
            clock=self.clock,
            rng=random.Random(4),
            observe=lambda _: None,
            budget=ByteBudget(1 << 24),
            read=BOTH.read,
            deaggregation=BOTH.deaggregation,
            fail_on_data_loss=True,
            consumer=None,
        )
        return await fetch_and_pin(plan, ports)

    async def next_slices(self, run: QueryRun) -> list[SlicePlan] | None:
        """Plan and log the next batch, or repeat the one that is not committed. None: there are no new records."""
        start = self.offsets[self.commits]
        if len(self.offsets) == self.commits + 1:
            end = await run.plan(start, LIMITS, wait_for_all=False)
            if end == start:
                return None
            self.offsets.append(end)
        tasks = await run.slices(start, self.offsets[self.commits + 1])
        return [plan for plans in tasks for plan in plans]

    async def run_batch(self, run: QueryRun) -> bool:
        """Run one batch. Returns False if there are no new records."""
        plans = await self.next_slices(run)
        if plans is not None:
            await self.finish_batch(plans)
        return plans is not None

    async def finish_batch(self, plans: list[SlicePlan]) -> None:
        """Read the slices of a batch, and commit it."""
        done = [(plan.stream, await self.fetch(plan)) for plan in plans]
        rows = [(stream, record.data) for stream, each in done if each for record in each.records]
        self.batches.setdefault(self.commits, rows)
        self.commits += 1

    def delivered(self) -> Counter[tuple[str, bytes]]:
        return Counter(row for rows in self.batches.values() for row in rows)

    async def drain(self, run: QueryRun) -> None:
        """Run batches until each record was delivered, and check that none was delivered twice."""
        until_ms = self.clock.now_ms() + 600_000
        while self.produced - self.delivered():
            assert self.clock.now_ms() < until_ms, "did not happen in time"
            if not await self.run_batch(run):
                await self.clock.sleep_ms(500)
        assert self.delivered() == self.produced

    def reshard(self) -> None:
        """Split the first shard of one stream, and merge both of the other."""
        self.service.split_shard(self.clock.wall_ms(), "orders", FIRST, HASH_KEYS // 4)
        self.service.merge_shards(self.clock.wall_ms(), "returns", FIRST, ShardId("shardId-000000000001"))


async def kill(run: QueryRun) -> None:
    """End a run without releasing its leases."""
    member = run._member
    assert member is not None
    assert member._running is not None
    member._running.cancel()
    await asyncio.gather(member._running, return_exceptions=True)


def test_each_record_of_each_stream_is_delivered_once_through_reshards_and_a_kill() -> None:
    """The driver is killed in a batch of which one slice is pinned. The next run repeats it."""

    async def scenario() -> None:
        world = StreamsWorld()
        world.put(30)
        run = world.run(BOTH)
        await world.drain(run)
        world.reshard()
        world.put(30)
        plans = await world.next_slices(run) or []
        while {plan.stream for plan in plans} != {"orders", "returns"}:
            if plans:
                await world.finish_batch(plans)
            await world.clock.sleep_ms(2_000)
            plans = await world.next_slices(run) or []
        await world.fetch(plans[0])
        await kill(run)
        run = world.run(BOTH)
        await world.drain(run)
        world.put(30)
        await world.drain(run)
        starts = world.offsets[-1]["from"]
        assert {key.partition(":shardId")[0].split(":")[1] for key in starts} == {"orders", "returns"}
        assert any(key.endswith(":shardId-000000000003") for key in starts), "children are read"
        await run.stop()

    run_in_virtual_time(scenario())


def test_the_progress_names_the_stream_of_each_shard() -> None:
    async def scenario() -> None:
        world = StreamsWorld()
        world.put(10)
        run = world.run(BOTH)
        await world.drain(run)
        report = run.report()
        assert report is not None
        assert len(report["shards"]) == 4
        assert Counter(each["stream"] for each in report["shards"].values()) == {"orders": 2, "returns": 2}
        await run.stop()

    run_in_virtual_time(scenario())


def test_a_bounded_run_reads_all_streams_and_ends() -> None:
    async def scenario() -> None:
        world = StreamsWorld()
        world.reshard()
        world.put(25)
        run = world.run(BOTH)
        run.is_available_now = True
        while await world.run_batch(run):
            pass
        assert world.delivered() == world.produced
        await run.stop()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize(("stream", "error"), [(NotAllowed, AccessDeniedError), (NamedByHand, NotFoundError)])
def test_a_first_run_is_refused_if_the_shards_of_one_stream_cannot_be_listed(
    stream: type[MemoryStream], error: type[Exception]
) -> None:
    """A bounded run would otherwise wait for the leases of this stream without end."""

    async def scenario() -> None:
        world = StreamsWorld()
        name = "returns" if stream is NotAllowed else "misspelt"
        world.replaced = {name: stream(world.service, name, world.clock)}
        run = world.run(options(streamName=f"orders,{name}"))
        run.is_available_now = True
        with pytest.raises(error, match=name):
            await asyncio.wait_for(world.next_slices(run), 300)

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("stream", [MemoryStream, NamedByHand])
def test_a_batch_read_refuses_one_stream_under_two_names(stream: type[MemoryStream]) -> None:
    """Each of its records would be read twice."""

    async def scenario() -> None:
        world = StreamsWorld()
        other = "123456789012:orders:1" if stream is NamedByHand else "orders"
        chosen = source_options({"streamName": f"{other},{ORDERS_ARN}"})
        opened = {
            other: stream(world.service, "orders", world.clock),
            ORDERS_ARN: MemoryStream(world.service, "orders", world.clock),
        }
        with pytest.raises(ConfigError, match="are the same stream"):
            await list_in_streams(opened, chosen, world.clock.wall_ms())

    run_in_virtual_time(scenario())


def test_a_batch_read_lists_the_shards_of_each_stream() -> None:
    async def scenario() -> None:
        world = StreamsWorld()
        opened = {name: world.stream(name) for name in ("orders", "returns")}
        found = await list_in_streams(
            opened, source_options({"streamName": "orders,returns"}), world.clock.wall_ms()
        )
        assert Counter(each.stream for each in found) == {"orders": 2, "returns": 2}

    run_in_virtual_time(scenario())


def test_a_refused_query_registers_no_consumer() -> None:
    async def scenario() -> None:
        world = StreamsWorld()
        world.put(20)
        run = world.run(BOTH)
        assert await world.run_batch(run)
        await run.stop()
        with pytest.raises(ConfigError, match=r"also reads .*:returns:"):
            await world.next_slices(world.run(options(streams="orders", consumerMode="efo")))
        assert not world.service.stream(world.clock.wall_ms(), "orders").consumers

    run_in_virtual_time(scenario())


def test_a_query_goes_on_with_one_more_stream_and_not_with_one_less() -> None:
    """The records of the new stream are delivered once, too, also if the last batch has to be repeated."""

    async def scenario() -> None:
        world = StreamsWorld()
        world.put(20)
        alone = options(streams="orders")
        run = world.run(alone)
        unread = Counter({key: n for key, n in world.produced.items() if key[0] == "returns"})
        world.produced -= unread
        await world.drain(run)
        world.put(20, "orders")
        await world.clock.sleep_ms(5_000)
        assert await world.next_slices(run)
        await kill(run)
        world.produced += unread
        run = world.run(BOTH)
        await world.drain(run)
        await run.stop()
        for chosen, sentence in (
            (alone, "also reads .*:returns:"),
            (options(streamName="orders"), "several streams"),
        ):
            with pytest.raises(ConfigError, match=sentence):
                await world.next_slices(world.run(chosen))

    run_in_virtual_time(scenario())


def test_a_query_of_one_stream_is_not_continued_with_two() -> None:
    async def scenario() -> None:
        world = StreamsWorld()
        world.put(20)
        run = world.run(options(streamName="orders"))
        assert await world.run_batch(run)
        await run.stop()
        with pytest.raises(ConfigError, match="a query of one stream, and the options name several"):
            await world.next_slices(world.run(BOTH))

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("lost", ["orders", "returns"])
def test_lost_leases_of_one_stream_are_noticed_and_restored(lost: str) -> None:
    """The leases of the other stream have the same shard ids, and must not stand in for them."""

    async def scenario() -> None:
        world = StreamsWorld()
        world.put(20)
        run = world.run(BOTH)
        run.is_available_now = True  # at its end, the log knows all that was read
        while await world.run_batch(run):
            pass
        await run.stop()
        world.rows = MemoryRows(
            [row for row in world.rows._rows.values() if lost not in str(row.get("streamName"))]
        )
        with pytest.raises(OffsetMismatchError, match=f"shard [0-9]+:{lost}:[0-9]+:{FIRST}: according"):
            await world.next_slices(world.run(BOTH))
        world.put(20)
        run = world.run(options(streamName="orders,returns", onLeasesBehind="offsets"))
        await world.drain(run)
        streams = {lease_from_row(row).stream for row in world.rows._rows.values() if "checkpoint" in row}
        assert len(streams) == 2
        await run.stop()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("has_old_leases", [True, False])
def test_a_recreated_stream_is_refused_or_read_from_its_oldest_record(has_old_leases: bool) -> None:
    """Also if nobody sees in the lease table that there was an earlier stream, and if the options say `latest`."""

    async def scenario() -> None:
        world = StreamsWorld()
        world.put(20)
        run = world.run(BOTH)
        await world.drain(run)
        await run.stop()
        world.service.delete_stream(world.clock.wall_ms(), "returns")
        await world.clock.sleep_ms(60_000)
        world.service.create_stream(world.clock.wall_ms(), "returns", shard_count=2)
        world.put(20)
        await world.clock.sleep_ms(60_000)  # so a start at the newest record skips them
        with pytest.raises(RecreatedStreamError, match="onRecreatedStream=start_over"):
            await world.next_slices(world.run(BOTH))
        if not has_old_leases:
            world.rows = MemoryRows(
                [row for row in world.rows._rows.values() if "returns" not in str(row.get("streamName"))]
            )
        chosen = options(
            streamName="orders,returns", onRecreatedStream="start_over", startingPosition="latest"
        )
        run = world.run(chosen)
        await world.drain(run)
        assert len(world.offsets[-1]["streams"]) == 2
        await run.stop()

    run_in_virtual_time(scenario())
