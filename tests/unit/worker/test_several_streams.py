"""Workers of several streams: shards of the same name, one lease table, and nothing is mixed up."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from leasehold.adapters.memory.faults import FaultyRows, StoreFault
from leasehold.adapters.memory.rows import MemoryRows
from leasehold.adapters.memory.stream import MemoryStream
from leasehold.core.events import Event, LeaseTaken, OperationFailed, PageRead, ShardsSynced
from leasehold.core.leases.row_writes import DeleteRow, PutRow
from leasehold.core.model import (
    HASH_KEY_MAX,
    WHOLE_HASH_RANGE,
    InitialPosition,
    Lease,
    LeaseSessionId,
    ShardId,
    StreamIdentifier,
    WorkerId,
    lease_key,
)
from leasehold.core.observing.health import Health, HealthLimits, health_to_json
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position
from leasehold.errors import ConfigError
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.writing import PutRequest
from leasehold.simulation.virtual_time import START_WALL_MS, VirtualClock, run_in_virtual_time
from leasehold.worker.batch import Batch
from leasehold.worker.batch_handler import BatchHandler
from leasehold.worker.delivery.shard_consumer import HandlerKind
from leasehold.worker.engine.run_worker import WorkerPorts, run_worker
from leasehold.worker.options import consumer_settings
from leasehold.worker.shard_iteration import ShardBatches, ShardIterationHandler
from leasehold.worker.user_code.handler_runners import InlineRunners

ORDERS, RETURNS = "orders", "returns"
BOTH = (ORDERS, RETURNS)
FIRST, SECOND = ShardId("shardId-000000000000"), ShardId("shardId-000000000001")
BEGINNING = InitialPosition(TRIM_HORIZON)
MIDDLE = (HASH_KEY_MAX + 1) // 2
STRANGE = StreamIdentifier("000000000000:strange:1600000000")
OPTIONS: Mapping[str, Any] = {
    "application": "billing",
    "clean_up_every": "5s",
    "first_audit_after": "5s",
    "audit_every": "5s",
}
MODES = pytest.mark.parametrize("mode", ["peer", "leader"])


def identifier(stream: str) -> StreamIdentifier:
    """What a stream of the world is called in the table."""
    return StreamIdentifier(f"000000000000:{stream}:{START_WALL_MS // 1000}")


@dataclass
class Handled:
    """One record that one worker handled."""

    worker: WorkerId
    batch: Batch
    data: str


@dataclass
class TwoStreams:
    """Two streams with shards of the same names. To be made while a virtual loop runs."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    handled: list[Handled] = field(default_factory=list)
    events: dict[WorkerId, list[Event]] = field(default_factory=dict)
    put_so_far: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.service = KinesisModel()
        for name in BOTH:
            self.service.create_stream(START_WALL_MS, name, shard_count=2)
        self.rows = MemoryRows()
        self.table = LeaseTable(self.rows)
        self.tasks: dict[WorkerId, asyncio.Task[BaseException | None]] = {}
        self._stops: dict[WorkerId, asyncio.Event] = {}
        self._dead: set[WorkerId] = set()

    def put(self, number: int, *streams: str) -> None:
        """Put so many records into every shard that is open."""
        for stream in streams or BOTH:
            for _ in range(number):
                count = self.put_so_far.get(stream, 0)
                self.put_so_far[stream] = count + 1
                place = (HASH_KEY_MAX + 1) // 8 * (count % 8)
                entry = PutRequest("key", f"{stream} {count}".encode(), place)
                self.service.put_record(self.clock.wall_ms(), stream, entry)

    def start(
        self,
        name: str,
        streams: Sequence[str] | Mapping[str, str] = BOTH,
        form: HandlerKind | None = None,
        **options: Any,
    ) -> WorkerId:
        """A worker of these streams; of a single one, in the old way, with `stream=` among the options."""
        worker = WorkerId(name)
        named = {} if "stream" in options else {"streams": streams}
        settings = consumer_settings({**OPTIONS, **named, **options}, {})
        log = self.events.setdefault(worker, [])
        ports = WorkerPorts(
            worker=worker,
            table=LeaseTable(FaultyRows(self.rows, lambda *_: self._trouble_of(worker))),
            streams={
                each: MemoryStream(self.service, each, self.clock)
                for each in settings.identity.initial_positions
            },
            dead_letters=None,
            clock=self.clock,
            rng=random.Random(name),
            observe=log.append,
        )

        def handle(batch: Batch) -> None:
            self.handled += [Handled(worker, batch, record.data.decode()) for record in batch]

        stop = self._stops[worker] = asyncio.Event()
        running = run_worker(settings, form or BatchHandler(handle), ports, InlineRunners(), stop)
        self.tasks[worker] = asyncio.ensure_future(running)
        return worker

    def _trouble_of(self, worker: WorkerId) -> StoreFault | None:
        return StoreFault.REQUEST_LOST if worker in self._dead else None

    async def kill(self, worker: WorkerId) -> None:
        """It writes nothing more, and is gone."""
        self._dead.add(worker)
        task = self.tasks.pop(worker)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def stop_all(self) -> None:
        """Stop whoever still runs, in good order."""
        for worker in list(self.tasks):
            self._stops[worker].set()
            assert await self.tasks.pop(worker) is None

    async def until(self, condition: Callable[[], bool], within_s: float = 120) -> None:
        """Let time pass until something holds."""
        deadline_ms = self.clock.now_ms() + int(within_s * 1000)
        while not condition():
            assert self.clock.now_ms() < deadline_ms, "did not happen in time"
            await self.clock.sleep_ms(50)

    async def until_leases(self, condition: Callable[[int], bool], within_s: float = 120) -> None:
        """Let time pass until there are so many leases."""
        deadline_ms = self.clock.now_ms() + int(within_s * 1000)
        while not condition(len((await self.table.list()).leases)):
            assert self.clock.now_ms() < deadline_ms, "did not happen in time"
            await self.clock.sleep_ms(50)

    def all_handled(self, *streams: str) -> bool:
        """Whether every record that was put is handled."""
        seen = {each.data for each in self.handled}
        return all(
            f"{stream} {number}" in seen
            for stream in streams or BOTH
            for number in range(self.put_so_far[stream])
        )

    def readers(self, stream: str) -> set[WorkerId]:
        """Who has handled records of a stream."""
        return {each.worker for each in self.handled if each.batch.stream == stream}


def played(story: Callable[[TwoStreams], Awaitable[None]]) -> TwoStreams:
    """Play a story in a new world, and stop whoever still runs."""

    async def play() -> TwoStreams:
        world = TwoStreams()
        await story(world)
        await world.stop_all()
        return world

    return run_in_virtual_time(play())


def strange_lease(**values: Any) -> Lease:
    """A lease of a stream that nobody here knows."""
    lease = Lease(
        key=lease_key(FIRST, STRANGE),
        shard_id=FIRST,
        stream=STRANGE,
        checkpoint=TRIM_HORIZON,
        hash_range=WHOLE_HASH_RANGE,
    )
    return replace(lease, **values)


@MODES
def test_both_streams_are_read_through_reshards_and_deaths(mode: str) -> None:
    """Every record is handled as one of its own stream, children after their parents, though shards share names."""

    async def story(world: TwoStreams) -> None:
        first, second = world.start("first", mode=mode), world.start("second", mode=mode)
        world.put(80)
        await world.until(
            lambda: world.all_handled() and len(world.readers(ORDERS) | world.readers(RETURNS)) == 2
        )
        world.service.split_shard(world.clock.wall_ms(), ORDERS, FIRST, MIDDLE // 2)
        world.service.merge_shards(world.clock.wall_ms(), RETURNS, FIRST, SECOND)
        world.put(80)
        await world.until(world.all_handled)
        await world.kill(first)
        world.put(80)
        third = world.start("third", mode=mode)
        await world.until(world.all_handled)
        world.service.merge_shards(
            world.clock.wall_ms(), ORDERS, "shardId-000000000002", "shardId-000000000003"
        )
        world.service.split_shard(world.clock.wall_ms(), RETURNS, "shardId-000000000002", MIDDLE)
        world.put(80)
        await world.kill(second)
        await world.until(world.all_handled)
        # Both streams have had a shard 2, and in one of them it was another's child.
        await world.until_leases(lambda number: number < 10)
        assert third in world.readers(ORDERS) & world.readers(RETURNS)

    world = played(story)
    assert all(each.data.startswith(f"{each.batch.stream} ") for each in world.handled)
    assert_in_order(world)


def assert_in_order(world: TwoStreams) -> None:
    """Records of one hash key are first handled in the order in which they were put."""
    for stream in BOTH:
        first_seen = list(dict.fromkeys(each.data for each in world.handled if each.batch.stream == stream))
        for place in range(8):
            numbers = [int(data.split()[1]) for data in first_seen]
            of_place = [number for number in numbers if number % 8 == place]
            assert of_place == sorted(of_place)


def test_the_rows_are_those_of_the_kcl() -> None:
    """Keys begin with account, name and second of creation; the row says the stream and the shard, too."""

    async def story(world: TwoStreams) -> None:
        world.start("one", mode="peer")
        await world.until_leases(lambda number: number == 4)
        key = f"{identifier(RETURNS)}:{SECOND}"
        row = await world.rows.get(key)
        assert row is not None
        assert row["streamName"] == {"S": identifier(RETURNS)}
        assert row["shardId"] == {"S": SECOND}

    played(story)


def test_each_stream_begins_where_it_is_told() -> None:
    """One from the oldest record, the other from the newest."""

    async def story(world: TwoStreams) -> None:
        world.put(16)
        world.start("one", {ORDERS: "trim_horizon", RETURNS: "latest"}, mode="peer")
        await world.until(lambda: world.all_handled(ORDERS))
        await world.clock.sleep_ms(5_000)
        world.put(8, RETURNS)
        await world.until(lambda: len({e.data for e in world.handled if e.batch.stream == RETURNS}) == 8)
        assert {e.data for e in world.handled if e.batch.stream == RETURNS} == {
            f"returns {n}" for n in range(16, 24)
        }

    played(story)


@MODES
def test_leases_of_a_strange_stream_are_left_alone(mode: str) -> None:
    """A stream that only other members know is neither read nor taken nor cleaned up, however free its leases are."""
    ended = strange_lease(
        key=lease_key(SECOND, STRANGE), shard_id=SECOND, checkpoint=SHARD_END, children=frozenset({FIRST})
    )

    async def story(world: TwoStreams) -> None:
        for lease in (strange_lease(checkpoint=Position("5")), ended):
            assert await world.table.create(lease)
        before = [await world.rows.get(key) for key in (lease_key(FIRST, STRANGE), ended.key)]
        world.start("one", mode=mode)
        world.put(16)
        await world.until(world.all_handled)
        await world.clock.sleep_ms(120_000)
        assert [await world.rows.get(key) for key in (lease_key(FIRST, STRANGE), ended.key)] == before

    world = played(story)
    assert {each.batch.stream for each in world.handled} == set(BOTH)


def test_a_lease_of_a_strange_stream_that_a_leader_gave_us_is_free_again() -> None:
    """It is not held, and nothing is read: whoever knows the stream may have it."""

    async def story(world: TwoStreams) -> None:
        await world.table.create(strange_lease())
        one = world.start("one", mode="leader")
        world.put(16)
        await world.until(world.all_handled)
        strange = await world.table.get(lease_key(FIRST, STRANGE))
        assert strange is not None
        await world.table.assign(strange, one)
        counter = strange.counter
        for _ in range(600):
            await world.clock.sleep_ms(100)
            strange = await world.table.get(lease_key(FIRST, STRANGE))
            assert strange is not None
            if strange.owner is None:
                break
        assert (strange.owner, strange.checkpoint) == (None, TRIM_HORIZON)
        assert strange.counter > counter

    played(story)


@pytest.mark.parametrize("small_rows", [200, 0])
def test_a_stream_that_only_one_member_knows_is_read_by_that_one(
    small_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that knows both streams may give either to a member that knows one, and gets it back."""
    monkeypatch.setattr("leasehold.fleet.assignment.fleet_reader.SMALL_TABLE_ROWS", small_rows)

    async def story(world: TwoStreams) -> None:
        both = world.start("both", mode="leader")
        world.put(16)
        await world.until(world.all_handled)
        one = world.start("one", (ORDERS,), mode="leader", balance_by="count")
        await world.clock.sleep_ms(90_000)
        world.put(64)
        await world.until(world.all_handled)
        assert world.readers(RETURNS) == {both}
        assert one in world.readers(ORDERS)

    played(story)


def test_a_stream_that_the_leader_does_not_know_is_read() -> None:
    """It is not shared out, so those who know it help themselves after a while: to all of it, and not one to all."""

    async def story(world: TwoStreams) -> None:
        leader = world.start("leader", (ORDERS,), mode="leader")
        world.put(64)
        await world.until(lambda: world.all_handled(ORDERS))
        world.service.update_shard_count(world.clock.wall_ms(), RETURNS, 4)
        first, second = world.start("first", mode="leader"), world.start("second", mode="leader")
        world.put(64)
        await world.until(world.all_handled, within_s=300)
        assert world.readers(RETURNS) == {first, second}
        assert leader in world.readers(ORDERS)

    played(story)


def test_a_stream_that_is_not_there_yet_holds_up_nobody() -> None:
    """The others are read; it is looked for again, and read once it is there."""

    async def story(world: TwoStreams) -> None:
        one = world.start("one", (*BOTH, "refunds"), mode="peer")
        world.put(16)
        await world.until(world.all_handled)
        assert any(
            isinstance(e, OperationFailed) and e.operation == "join stream refunds" for e in world.events[one]
        )
        world.service.create_stream(world.clock.wall_ms(), "refunds", shard_count=1)
        world.put(8, "refunds")
        await world.until(lambda: world.all_handled("refunds"))

    played(story)


@MODES
def test_a_stream_that_an_unreadable_row_holds_up_is_read_once_that_is_repaired(mode: str) -> None:
    """Also where the leader does not know the stream; the others are read meanwhile."""

    async def story(world: TwoStreams) -> None:
        key = lease_key(FIRST, identifier(RETURNS))
        await world.rows.write(PutRow(key, {"leaseKey": {"S": key}}))
        world.start("leader", (ORDERS,), mode=mode)
        await world.until_leases(lambda number: number == 2)
        one = world.start("one", mode=mode)
        world.put(16)
        await world.until(lambda: world.all_handled(ORDERS))
        assert any(
            isinstance(e, OperationFailed) and e.operation == "join stream returns" for e in world.events[one]
        )
        await world.rows.write(DeleteRow(key=key, when=()))
        await world.until(world.all_handled, within_s=240)

    played(story)


@pytest.mark.parametrize(("first", "second"), [({"stream": ORDERS}, {}), ({}, {"stream": ORDERS})])
def test_one_table_is_of_one_stream_or_of_several(first: dict[str, Any], second: dict[str, Any]) -> None:
    """A member of the other kind does not start, since two sets of leases would have records handled twice."""

    async def story(world: TwoStreams) -> None:
        world.start("first", mode="peer", **first)
        await world.until_leases(lambda number: number >= 2)
        refused = world.start("second", mode="peer", **second)
        await asyncio.wait({world.tasks[refused]})
        error = world.tasks.pop(refused).exception()
        assert isinstance(error, ConfigError)
        assert "another application name" in str(error)

    played(story)


def test_a_stream_that_is_named_twice_is_refused() -> None:
    """Once by its name and once by its ARN, say: its shards would have two sets of everything."""

    async def story(world: TwoStreams) -> None:
        orders = MemoryStream(world.service, ORDERS, world.clock)
        streams = Streams(
            [
                TrackedStream(ORDERS, orders, BEGINNING),
                TrackedStream("arn:aws:kinesis:us-east-1:000000000000:stream/orders", orders, BEGINNING),
            ],
            is_multi_stream=True,
        )
        first, second = streams.tracked
        await streams.identify(first)
        with pytest.raises(ConfigError, match="one and the same"):
            await streams.identify(second)

    played(story)


class _NamedOtherwise(MemoryStream):
    """A stream for which a tracker in Java made up an identifier."""

    async def identifier(self) -> StreamIdentifier:
        return StreamIdentifier(f"000000000000:{ORDERS}:1")


def test_a_stream_under_two_identifiers_is_refused() -> None:
    """By its name, and by an identifier of the same account and name: each record would be read twice."""

    async def story(world: TwoStreams) -> None:
        made_up = f"000000000000:{ORDERS}:1"
        tracked = (
            TrackedStream(made_up, _NamedOtherwise(world.service, ORDERS, world.clock), BEGINNING),
            TrackedStream(RETURNS, MemoryStream(world.service, RETURNS, world.clock), BEGINNING),
            TrackedStream(ORDERS, MemoryStream(world.service, ORDERS, world.clock), BEGINNING),
        )
        streams = Streams(tracked, is_multi_stream=True)
        await streams.identify(tracked[0])
        await streams.identify(tracked[1])
        with pytest.raises(ConfigError, match="name it once"):
            await streams.identify(tracked[2])
        of_orders = strange_lease(stream=identifier(ORDERS), key=lease_key(FIRST, identifier(ORDERS)))
        assert streams.of(of_orders) is None

    played(story)


def test_whoever_watches_sees_two_shards_of_one_name() -> None:
    """Events say of which stream a shard is, and health counts both."""

    async def story(world: TwoStreams) -> None:
        one = world.start("one", mode="peer")
        world.put(16)
        await world.until(world.all_handled)
        health = Health(HealthLimits(failover_ms=10_000, stuck_after_ms=300_000), 0)
        for event in world.events[one]:
            health.observe(event, 0)
        shards = health_to_json(health.report(0))["shards"]
        assert set(shards) == {f"{identifier(name)}:{shard}" for name in BOTH for shard in (FIRST, SECOND)}
        told = world.events[one]
        assert {e.shard_key for e in told if isinstance(e, LeaseTaken)} == set(shards)
        assert {e.shard_key for e in told if isinstance(e, PageRead)} == set(shards)
        assert {e.stream for e in told if isinstance(e, ShardsSynced)} == {identifier(name) for name in BOTH}

    played(story)


def test_shards_that_are_iterated_over_say_their_stream() -> None:
    """So do their batches; tokens of two shards of one name differ."""
    offered: list[ShardBatches] = []

    async def story(world: TwoStreams) -> None:
        world.start("one", mode="peer", form=ShardIterationHandler(offered.append))
        await world.until(lambda: len(offered) == 4)
        assert sorted((each.stream, each.shard) for each in offered) == [
            (name, shard) for name in BOTH for shard in (FIRST, SECOND)
        ]
        assert len({each.fencing_token for each in offered}) == 4

    played(story)


def test_a_holding_of_another_process_is_not_disturbed() -> None:
    """A strange lease that somebody with our id is reading is not taken from under it."""

    async def story(world: TwoStreams) -> None:
        await world.table.create(strange_lease())
        one = world.start("one", mode="leader")
        await world.until_leases(lambda number: number > 4)
        strange = await world.table.get(lease_key(FIRST, STRANGE))
        assert strange is not None
        held = await world.table.take(strange, one, LeaseSessionId("another process"))
        for _ in range(20):
            assert isinstance(held, Lease)
            await world.clock.sleep_ms(2_000)
            held = await world.table.renew(held)
        assert isinstance(held, Lease)

    played(story)
