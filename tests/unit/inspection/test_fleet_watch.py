"""Reading a fleet again and again: what is compared, which lags are measured, what is listed."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import pytest

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.adapters.memory.stream import MemoryStream
from leasehold.core.coordinator.fleet_mode import TableLayout
from leasehold.core.coordinator.leader_lock import acquire
from leasehold.core.finding import Finding, Severity
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId, lease_key
from leasehold.core.observing.explain.facts import TableRead
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position
from leasehold.errors import NotFoundError, ServiceError, UnavailableError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.inspection.fleet_watch import FleetWatch, choose_probes, forget_old_reads
from leasehold.kinesis_model.service import KinesisModel
from leasehold.ports import Clock

SHARDS = [ShardId(f"shardId-{number:012}") for number in range(3)]
NOW_MS = 1_700_000_000_000


class ManualClock(Clock):
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.passed_ms = 0

    def now_ms(self) -> int:
        return self.passed_ms

    def wall_ms(self) -> int:
        return NOW_MS + self.passed_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        self.passed_ms += duration_ms


class DescribedStream(MemoryStream):
    """A stream in memory that keeps its records for a day."""

    problem: ServiceError | None = None

    async def get_retention_ms(self) -> int:
        if self.problem is not None:
            raise self.problem
        return 86_400_000


class World:
    """A table with a lease for each shard of a stream, and a watch."""

    def __init__(self, stream: str | None = "orders") -> None:
        self.clock = ManualClock()
        self.service = KinesisModel()
        self.service.create_stream(NOW_MS, "orders", shard_count=3)
        self.rows = MemoryRows()
        self.table = LeaseTable(self.rows)
        self.opened: list[DescribedStream] = []
        self.watch = FleetWatch(
            self.table, self.open, self.clock, watch_ms=15_000, application="orders-app", stream=stream
        )

    def open(self, name: str) -> DescribedStream:
        self.opened.append(DescribedStream(self.service, name, self.clock))
        return self.opened[-1]

    async def create_leases(self) -> None:
        for shard in SHARDS:
            lease = Lease(key=lease_key(shard), shard_id=shard, checkpoint=TRIM_HORIZON)
            await self.table.create(lease)
            await self.table.take(lease, WorkerId("anna"), LeaseSessionId("s"))


def run(test: Callable[[World], Awaitable[None]], **arguments: str | None) -> None:
    async def within() -> None:
        world = World(**arguments)
        await world.create_leases()
        await test(world)

    asyncio.run(within())


def test_a_read_is_compared_with_one_that_is_old_enough() -> None:
    reads = deque(TableRead(at_ms=at, leases=()) for at in (0, 5_000, 10_000, 15_000, 20_000))
    assert forget_old_reads(reads, 15_000).at_ms == 5_000
    assert len(reads) == 4
    assert forget_old_reads(deque([TableRead(at_ms=3, leases=())]), 15_000).at_ms == 3


def test_the_lags_that_were_measured_longest_ago_are_measured_next() -> None:
    leases = tuple(
        Lease(key=LeaseKey(key), shard_id=ShardId(key), checkpoint=checkpoint, parents=frozenset(parents))
        for key, checkpoint, parents in (
            ("a", Position("1"), ()),
            ("b", Position("1"), ()),
            ("new", Position("1"), ()),
            ("ended", SHARD_END, ()),
            ("waits", TRIM_HORIZON, (ShardId("a"),)),
        )
    )
    read = TableRead(at_ms=0, leases=leases)
    measured = {LeaseKey("a"): 9, LeaseKey("b"): 5}
    assert [lease.key for lease in choose_probes(read, measured)] == ["new", "b", "a"]
    assert [lease.key for lease in choose_probes(read, measured, limit=2)] == ["new", "b"]


def test_successive_reads_become_facts_with_lags_and_calls() -> None:
    async def test(world: World) -> None:
        finding = Finding(code="worker_unhealthy", severity=Severity.PROBLEM, text="a problem")
        first = await world.watch.read()
        assert first.facts.watched_ms == 0
        assert (
            first.kinesis_calls == 3 * 2 + 2
        )  # an iterator and a page for each shard, the list, the retention
        for _ in range(4):
            await world.clock.sleep_ms(5_000)
            read = await world.watch.read({"w": (finding,)})
        assert read.facts.watched_ms == 15_000
        assert {key: len(lags) for key, lags in read.facts.lags.items()} == dict.fromkeys(
            map(lease_key, SHARDS), 4
        )
        assert read.facts.streams[None].retention_ms == 86_400_000
        assert read.facts.worker_findings == {"w": (finding,)}
        assert read.problems == ()
        assert len(world.opened) == 1
        await world.watch.close()

    run(test)


def test_the_list_is_read_again_for_a_new_lease_and_after_a_while() -> None:
    async def test(world: World) -> None:
        await world.watch.read()
        world.service.split_shard(NOW_MS, "orders", SHARDS[0], 2**126)
        read = await world.watch.read()
        assert len(read.facts.streams[None].shards or ()) == 3
        child = ShardId("shardId-000000000003")
        await world.table.create(Lease(key=lease_key(child), shard_id=child, checkpoint=TRIM_HORIZON))
        read = await world.watch.read()
        assert len(read.facts.streams[None].shards or ()) == 5

    run(test)


def test_the_first_leader_is_seen_at_the_next_read() -> None:
    """The layout is kept for a minute, and a new fleet has its leader within seconds."""

    async def test() -> None:
        world = World()
        await world.table.create(Lease(key=lease_key(SHARDS[0]), shard_id=SHARDS[0], checkpoint=TRIM_HORIZON))
        assert not (await world.watch.read()).facts.has_leader
        await world.table.coordinator_rows.write_lock(
            TableLayout.SINGLE_TABLE, acquire(None, WorkerId("anna"), "v1", 30_000, "leaseKey")
        )
        await world.clock.sleep_ms(5_000)
        assert (await world.watch.read()).facts.has_leader
        await world.watch.close()

    asyncio.run(test())


def test_a_stream_that_cannot_be_described_is_a_sentence_and_the_leases_are_shown() -> None:
    async def test(world: World) -> None:
        world.watch = FleetWatch(
            world.table, failing, world.clock, watch_ms=1, application="orders-app", stream="orders"
        )
        read = await world.watch.read()
        assert read.problems == ("stream orders cannot be described: denied",)
        assert len(read.facts.after.leases) == 3

    def failing(name: str) -> DescribedStream:
        stream = DescribedStream(KinesisModel(), name, ManualClock())
        stream.problem = ServiceError("denied")
        stream._service.create_stream(NOW_MS, name, shard_count=3)
        return stream

    run(test)


def test_without_the_name_of_the_stream_the_leases_are_shown_without_lags() -> None:
    async def test(world: World) -> None:
        read = await world.watch.read()
        assert (read.facts.streams, read.facts.lags, len(read.facts.after.leases)) == ({}, {}, 3)

    run(test, stream=None)


@pytest.mark.parametrize("error", [NotFoundError("no table"), UnavailableError("no answer")])
def test_a_table_that_cannot_be_read_is_an_error_and_the_next_read_works(error: ServiceError) -> None:
    async def test(world: World) -> None:
        await world.watch.read()
        scan = world.rows.scan

        async def fail(*, segments: int = 1, is_consistent: bool = False) -> object:
            raise error

        world.rows.scan = fail  # type: ignore[assignment]
        with pytest.raises(type(error)):
            await world.watch.read()
        world.rows.scan = scan  # type: ignore[method-assign]
        assert len((await world.watch.read()).facts.after.leases) == 3

    run(test)
