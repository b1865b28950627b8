"""A query without Spark, on a virtual clock: the real planner, lease server, member and tasks, and models of Spark's
offset log, commit log and sink. Each test decides what crashes, hangs or comes late.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.adapters.memory.stream import MemoryStream
from leasehold.config.settings import FleetSettings, Mode, ReadSettings
from leasehold.core.exactly_once.pinned_batch import ContinueReading, GenerationId, Redeliver, next_slice
from leasehold.core.exactly_once.query_offset import QueryOffset, ReadStart
from leasehold.core.exactly_once.slice_limits import BatchLimits, SliceLimits
from leasehold.core.leases.row_writes import Row, RowWrite
from leasehold.core.model import InitialPosition, Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId
from leasehold.core.position import TRIM_HORIZON
from leasehold.core.record import PutEntry
from leasehold.core.records.aggregation import aggregate
from leasehold.core.records.deaggregation import DEFAULT_DEAGGREGATION
from leasehold.fleet.member import Member, MemberPorts
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.streams import Streams
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.kinesis_model.writing import PutRequest
from leasehold.ports import Applied, Refused
from leasehold.simulation.virtual_time import VirtualClock
from leasehold.spark.query.batch_planner import BatchPlanner
from leasehold.spark.query.lease_server import LeaseServer
from leasehold.spark.query.pinned_slices import PinnedSlice, ReaderPorts, SlicePlan, fetch_and_pin
from leasehold.spark.query_settings import QuerySettings

QUERY_ID = "00c0ffee"
OTHER = WorkerId("other")
FLEET = FleetSettings(
    mode=Mode.PEER, refresh_every=timedelta(seconds=0.5), cooldown_after_failure=timedelta(seconds=1)
)
HASH_KEYS = 1 << 128


class GatedRows(MemoryRows):
    """Shares the rows of another store. Writes wait for a gate."""

    def __init__(self, rows: MemoryRows, gate: asyncio.Event, wrote: asyncio.Event) -> None:
        super().__init__()
        self._rows = rows._rows
        self._gate, self._waits = gate, wrote

    async def write(self, write: RowWrite) -> Applied | Refused:
        self._waits.set()
        await self._gate.wait()
        return await super().write(write)

    def row(self, key: str) -> Row | None:
        return self._rows.get(key)


@dataclass
class Attempt:
    """One attempt at a slice. It stops before its pin until the gate opens."""

    plan: SlicePlan
    task: "asyncio.Task[PinnedSlice | None]"
    gate: asyncio.Event
    waits: asyncio.Event

    async def wait_for_pin(self) -> None:
        """Wait until the attempt is about to pin, or has ended without a pin."""
        waits = asyncio.create_task(self.waits.wait())
        await asyncio.wait({waits, self.task}, return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()

    async def result(self) -> PinnedSlice | None:
        """Open the gate and wait for the result."""
        self.gate.set()
        return await self.task


@dataclass
class RangeSink:
    """Stores ranges by name, each created only if absent, like the archive."""

    ranges: dict[tuple[ShardId, str, str], tuple[bytes, ...]] = field(default_factory=dict)

    def write(self, done: PinnedSlice | None) -> None:
        """Write a slice. The same name must always have the same content."""
        if done is None or not done.records:
            return
        first, last = done.records[0].position, done.records[-1].position
        content = tuple(record.data for record in done.records)
        key = (done.plan.lease.shard_id, str(first), str(last))
        assert self.ranges.setdefault(key, content) == content

    def numbers(self) -> Counter[int]:
        """How often the sink contains each record."""
        return Counter(int(data) for content in self.ranges.values() for data in content)


@dataclass
class SparkLog:
    """The checkpoint location: what Spark logs before and after each batch."""

    offsets: list[QueryOffset] = field(default_factory=list)
    commits: int = 0
    batches: dict[int, list[bytes]] = field(
        default_factory=dict
    )  # rows of each batch when it was committed first
    query_id: str = QUERY_ID

    @property
    def committed(self) -> QueryOffset:
        """The last committed offset."""
        return (
            self.offsets[self.commits - 1]
            if self.commits
            else QueryOffset(GenerationId(self.query_id, 0), {})
        )

    @property
    def is_pending(self) -> bool:
        """True if a batch is logged and not committed."""
        return len(self.offsets) > self.commits


class QueryRun:
    """One run of the query's driver: a member, its lease server and its planner."""

    def __init__(self, world: "QueryWorld") -> None:
        self.world = world
        world.runs += 1
        streams = Streams.single(world.stream, "orders", world.settings.initial)
        self.server = LeaseServer(
            streams,
            world.settings.poll_every,
            world.clock,
            random.Random(1),
            records_min=world.limits.records_min,
        )
        self.planner = BatchPlanner(
            worker=WorkerId(f"spark-{world.log.query_id}"),
            table=world.table,
            server=self.server,
            settings=world.settings,
            clock=world.clock,
            rng=random.Random(1),
        )
        self._stop = asyncio.Event()
        self._member = Member(
            MemberPorts(
                table=world.table,
                streams=streams,
                clock=world.clock,
                # Each run draws other session ids. With the same ids, tasks of an earlier run could still pin.
                rng=random.Random(f"member {world.runs}"),
                observe=lambda _: None,
            ),
            application="billing",
            worker=WorkerId(f"spark-{world.log.query_id}"),
            serve=self.server.serve,
            settings=replace(FLEET, max_leases=world.settings.max_leases),
        )
        self._life: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the member, as the driver does."""
        if self.world.log.offsets:
            await self.planner.prepare(self.world.log.offsets[-1])
        self._life = asyncio.create_task(self._member.run(self._stop))
        await self.world.clock.sleep_ms(2000)

    async def kill(self) -> None:
        """End without releasing any lease. A run that was refused at its start has nothing to end."""
        if self._life is not None:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)

    async def stop(self, committed: GenerationId | None = None) -> None:
        """Stop and release all leases. `committed` is the last generation that Spark reported as committed."""
        assert self._life is not None
        self.server.stop(committed)
        self._stop.set()
        await self._life

    async def next_plans(self) -> list[SlicePlan] | None:
        """Plan and log the next batch, or replay the pending one. Returns None if there are no new records."""
        log = self.world.log
        if log.is_pending:
            return await self.planner.replay(log.offsets[-1])
        planned = await self.planner.plan(log.committed, self.world.limits)
        if planned is None:
            return None
        log.offsets.append(planned[0])
        return planned[1]


@dataclass
class QueryWorld:
    """A stream, its lease table, one checkpoint location and one sink. Create it while the virtual loop runs."""

    shards: int = 2
    limits: BatchLimits = field(default_factory=lambda: BatchLimits(records=12))
    settings: QuerySettings = field(
        default_factory=lambda: QuerySettings(initial=InitialPosition(TRIM_HORIZON))
    )
    clock: VirtualClock = field(default_factory=VirtualClock)
    produced: int = 0
    per_aggregate: int = 7  # more than fit into one slice
    shard_end_with_last_records: bool = False
    runs: int = 0  # that were started

    def __post_init__(self) -> None:
        self.service = KinesisModel(
            settings=ServiceSettings(shard_end_with_last_records=self.shard_end_with_last_records)
        )
        self.service.create_stream(self.clock.wall_ms(), "orders", shard_count=self.shards)
        self.stream = MemoryStream(self.service, "orders", self.clock)
        self.rows = MemoryRows()
        self.table = LeaseTable(self.rows)
        self.log, self.sink = SparkLog(), RangeSink()
        self._rng = random.Random(3)

    # -- the stream --------------------------------------------------------------------------------------------

    def put(self, count: int) -> list[str]:
        """Put numbered records into all shards, some in aggregates. Returns their sequence numbers."""
        numbers = list(range(self.produced, self.produced + count))
        self.produced += count
        placed: list[str] = []
        while numbers:
            size = self._rng.choice((1, 1, self.per_aggregate))
            together, numbers = numbers[:size], numbers[size:]
            placed += [self._put(together)] * len(together)
        return placed

    def put_at(self, hash_key: int) -> None:
        """Put one numbered record into the shard of a hash key."""
        self.produced += 1
        self._put([self.produced - 1], hash_key)

    def _put(self, numbers: list[int], hash_key: int | None = None) -> str:
        key = self._rng.randrange(HASH_KEYS) if hash_key is None else hash_key
        entries = [PutEntry(b"%d" % number, "k", key) for number in numbers]
        whole = aggregate(entries)._replace(explicit_hash_key=key) if len(entries) > 1 else entries[0]
        entry = PutRequest(whole.partition_key, whole.data, key)
        return str(self.service.put_record(self.clock.wall_ms(), "orders", entry).number)

    async def split(self, shard: ShardId) -> None:
        """Split an open shard."""
        found = {each.id: each for each in await self.stream.list_shards()}[shard]
        middle = (found.hash_range.start + found.hash_range.end) // 2 + 1
        self.service.split_shard(self.clock.wall_ms(), "orders", shard, middle)

    def merge(self, lower: ShardId, upper: ShardId) -> None:
        """Merge two adjacent open shards."""
        self.service.merge_shards(self.clock.wall_ms(), "orders", lower, upper)

    async def open_shards(self) -> list[ShardId]:
        """The shards without children."""
        shards = await self.stream.list_shards()
        parents = {parent for each in shards for parent in each.parents}
        return [each.id for each in shards if each.id not in parents]

    def replace_rows(self, rows: Sequence[Row]) -> None:
        """Replace the lease table, while no run is alive."""
        self.rows = MemoryRows(rows)
        self.table = LeaseTable(self.rows)

    # -- tasks -------------------------------------------------------------------------------------------------

    def attempt(self, plan: SlicePlan) -> Attempt:
        """Start an attempt at a slice. It stops before its pin until its gate opens."""
        gate, waits = asyncio.Event(), asyncio.Event()
        table = LeaseTable(GatedRows(self.rows, gate, waits))
        ports = ReaderPorts(
            stream=self.stream,
            table=table,
            clock=self.clock,
            rng=random.Random(4),
            observe=lambda _: None,
            budget=ByteBudget(1 << 24),
            read=ReadSettings(),
            deaggregation=DEFAULT_DEAGGREGATION,
            fail_on_data_loss=True,
        )
        return Attempt(plan, asyncio.create_task(fetch_and_pin(plan, ports)), gate, waits)

    async def run_batch(self, run: QueryRun) -> bool:
        """Run one batch without faults. Returns False if there are no new records."""
        plans = await run.next_plans()
        if plans is None:
            return False
        done = [await self.attempt(plan).result() for plan in plans]
        self.deliver(done)
        self.commit(done)
        return True

    def deliver(self, done: list[PinnedSlice | None]) -> None:
        for each in done:
            self.sink.write(each)

    def commit(self, done: list[PinnedSlice | None]) -> None:
        """Commit a batch, as Spark does. A sink with batch ids keeps the first content of each batch."""
        rows = [record.data for each in done if each for record in each.records]
        self.log.batches.setdefault(self.log.commits, rows)
        self.log.commits = len(self.log.offsets)

    async def drain(self, run: QueryRun, is_done: Callable[[], bool], within_s: int = 600) -> None:
        """Run batches until a condition holds."""
        until_ms = self.clock.now_ms() + within_s * 1000
        while not is_done():
            assert self.clock.now_ms() < until_ms, "did not happen in time"
            if not await self.run_batch(run):
                await self.clock.sleep_ms(500)

    async def read_all_available(self) -> None:
        """A bounded run, from its start to its end, as with Trigger.AvailableNow."""
        run = QueryRun(self)
        await run.start()
        run.planner.is_available_now = True
        while True:
            if await self.run_batch(run):
                continue
            if not await run.planner.has_read_all_available():
                await self.clock.sleep_ms(250)
                continue
            final = run.planner.plan_final(self.log.committed)
            if final is None:
                break
            self.log.offsets.append(final)
            await run.planner.stamp(final.generation_id)
            self.commit([])
        await run.stop()

    # -- another member ----------------------------------------------------------------------------------------

    async def steal(self, shard: ShardId) -> Lease | None:
        """Let another member take a lease, whoever owns it."""
        lease = await self.table.get(LeaseKey(shard))
        if lease is None or lease.checkpoint.is_shard_end:
            return None
        taken = await self.table.take(lease, OTHER, LeaseSessionId(f"{self._rng.getrandbits(128):032x}"))
        assert isinstance(taken, Lease)
        return taken

    async def serve_stolen(self, lease: Lease, *, slices: int, releases: bool) -> None:
        """Let the other member redeliver the pinned slice, read some slices, and release the lease or crash."""
        for number in range(slices):
            following = next_slice(lease, GenerationId("f00d", 10**6))
            assert isinstance(following, ContinueReading | Redeliver)
            after, redeliver_to = following.after, following.end if isinstance(following, Redeliver) else None
            plan = SlicePlan(
                lease,
                GenerationId("f00d", number),
                ReadStart(after),
                SliceLimits(records=3),
                "orders",
                redeliver_to=redeliver_to,
            )
            self.sink.write(await self.attempt(plan).result())
            now = await self.table.get(lease.key)
            assert now is not None
            promoted = await self.table.promote(now) if now.pin else now
            assert isinstance(promoted, Lease)
            lease = promoted
        if releases:
            assert isinstance(await self.table.release(lease), Lease)

    def missing(self) -> set[int]:
        """The records that were put and are not in the sink."""
        return set(range(self.produced)) - set(self.sink.numbers())

    def check_once(self) -> None:
        """Assert that the sink contains each record once."""
        assert self.sink.numbers() == Counter(range(self.produced))


async def until(clock: VirtualClock, condition: Callable[[], Awaitable[bool]], within_s: int = 120) -> None:
    """Let virtual time pass until a condition holds."""
    deadline_ms = clock.now_ms() + within_s * 1000
    while not await condition():
        assert clock.now_ms() < deadline_ms, "did not happen in time"
        await clock.sleep_ms(100)
