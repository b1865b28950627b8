"""Workers of several streams share one lease table, although the streams have shards of the same names."""

import asyncio
from typing import Any

import pytest

from leasehold.adapters.memory.stream import MemoryStream
from leasehold.core.events import LeaseTaken, OperationFailed, PageRead, ShardsSynced
from leasehold.core.leases.row_writes import DeleteRow, PutRow
from leasehold.core.model import (
    Lease,
    LeaseSessionId,
    StreamIdentifier,
    lease_key,
)
from leasehold.core.observing.health import Health, HealthLimits, health_to_json
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position
from leasehold.errors import ConfigError
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.worker.shard_iteration import ShardBatches, ShardIterationHandler
from tests.unit.worker.multi_stream_world import (
    BOTH,
    FIRST,
    FROM_OLDEST,
    MIDDLE,
    MODES,
    ORDERS,
    RETURNS,
    SECOND,
    UNKNOWN,
    MultiStreamWorld,
    identifier,
    run_scenario,
    unknown_lease,
)


@pytest.mark.parametrize(
    ("mode", "retrieval"), [("peer", "polling"), ("leader", "polling"), ("leader", "fan_out")]
)
def test_both_streams_are_read_through_reshards_and_crashes(mode: str, retrieval: str) -> None:
    """Every record is handled with its own stream, children after their parents, although shards share names."""
    options: dict[str, Any] = {"mode": mode, "retrieval": retrieval}

    async def scenario(world: MultiStreamWorld) -> None:
        first, second = world.start("first", **options), world.start("second", **options)
        world.put(80)
        await world.until(
            lambda: world.all_handled() and len(world.readers(ORDERS) | world.readers(RETURNS)) == 2
        )
        world.service.split_shard(world.clock.wall_ms(), ORDERS, FIRST, MIDDLE // 2)
        world.service.merge_shards(world.clock.wall_ms(), RETURNS, FIRST, SECOND)
        world.put(80)
        await world.until(world.all_handled)
        await world.crash(first)
        world.put(80)
        third = world.start("third", **options)
        await world.until(world.all_handled)
        world.service.merge_shards(
            world.clock.wall_ms(), ORDERS, "shardId-000000000002", "shardId-000000000003"
        )
        world.service.split_shard(world.clock.wall_ms(), RETURNS, "shardId-000000000002", MIDDLE)
        world.put(80)
        await world.crash(second)
        await world.until(world.all_handled)
        # Each stream has a shard 2, and their parents differ.
        await world.until_leases(lambda number: number < 10)
        assert third in world.readers(ORDERS) & world.readers(RETURNS)

    world = run_scenario(scenario)
    assert all(each.data.startswith(f"{each.batch.stream} ") for each in world.handled)
    assert_handled_in_order(world)


def assert_handled_in_order(world: MultiStreamWorld) -> None:
    """Records of one hash key are first handled in the order in which they were put."""
    for stream in BOTH:
        first_seen = list(dict.fromkeys(each.data for each in world.handled if each.batch.stream == stream))
        for place in range(8):
            numbers = [int(data.split()[1]) for data in first_seen]
            of_place = [number for number in numbers if number % 8 == place]
            assert of_place == sorted(of_place)


def test_the_rows_have_the_format_of_the_kcl() -> None:
    """A key starts with account, stream name and creation time, and the row also has the stream and the shard."""

    async def scenario(world: MultiStreamWorld) -> None:
        world.start("one", mode="peer")
        await world.until_leases(lambda number: number == 4)
        key = f"{identifier(RETURNS)}:{SECOND}"
        row = await world.rows.get(key)
        assert row is not None
        assert row["streamName"] == {"S": identifier(RETURNS)}
        assert row["shardId"] == {"S": SECOND}

    run_scenario(scenario)


def test_each_stream_has_its_own_initial_position() -> None:
    """One starts at the oldest record, the other at the newest."""

    async def scenario(world: MultiStreamWorld) -> None:
        world.put(16)
        world.start("one", {ORDERS: "trim_horizon", RETURNS: "latest"}, mode="peer")
        await world.until(lambda: world.all_handled(ORDERS))
        await world.clock.sleep_ms(5_000)
        world.put(8, RETURNS)
        await world.until(lambda: len({e.data for e in world.handled if e.batch.stream == RETURNS}) == 8)
        assert {e.data for e in world.handled if e.batch.stream == RETURNS} == {
            f"returns {n}" for n in range(16, 24)
        }

    run_scenario(scenario)


@MODES
def test_leases_of_an_unknown_stream_are_not_touched(mode: str) -> None:
    """A stream that only other members know is neither read nor taken nor cleaned up, even if its leases are free."""
    ended = unknown_lease(
        key=lease_key(SECOND, UNKNOWN), shard_id=SECOND, checkpoint=SHARD_END, children=frozenset({FIRST})
    )

    async def scenario(world: MultiStreamWorld) -> None:
        for lease in (unknown_lease(checkpoint=Position("5")), ended):
            assert await world.table.create(lease)
        before = [await world.rows.get(key) for key in (lease_key(FIRST, UNKNOWN), ended.key)]
        world.start("one", mode=mode)
        world.put(16)
        await world.until(world.all_handled)
        await world.clock.sleep_ms(120_000)
        assert [await world.rows.get(key) for key in (lease_key(FIRST, UNKNOWN), ended.key)] == before

    world = run_scenario(scenario)
    assert {each.batch.stream for each in world.handled} == set(BOTH)


def test_a_member_releases_an_assigned_lease_of_an_unknown_stream() -> None:
    """The member does not read it, so that a member that knows the stream can take it."""

    async def scenario(world: MultiStreamWorld) -> None:
        await world.table.create(unknown_lease())
        one = world.start("one", mode="leader")
        world.put(16)
        await world.until(world.all_handled)
        unknown = await world.table.get(lease_key(FIRST, UNKNOWN))
        assert unknown is not None
        await world.table.assign(unknown, one)
        counter = unknown.counter
        for _ in range(600):
            await world.clock.sleep_ms(100)
            unknown = await world.table.get(lease_key(FIRST, UNKNOWN))
            assert unknown is not None
            if unknown.owner is None:
                break
        assert (unknown.owner, unknown.checkpoint) == (None, TRIM_HORIZON)
        assert unknown.counter > counter

    run_scenario(scenario)


@pytest.mark.parametrize("small_rows", [200, 0])
def test_a_stream_that_only_one_member_knows_is_read_by_that_member(
    small_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that knows both streams may assign either to a member that knows one, and that member releases it."""
    monkeypatch.setattr("leasehold.fleet.assignment.fleet_reader.SMALL_TABLE_ROWS", small_rows)

    async def scenario(world: MultiStreamWorld) -> None:
        both = world.start("both", mode="leader")
        world.put(16)
        await world.until(world.all_handled)
        one = world.start("one", (ORDERS,), mode="leader", balance_by="count")
        await world.clock.sleep_ms(90_000)
        world.put(64)
        await world.until(world.all_handled)
        assert world.readers(RETURNS) == {both}
        assert one in world.readers(ORDERS)

    run_scenario(scenario)


def test_a_stream_that_the_leader_does_not_know_is_read() -> None:
    """The leader does not assign it, so after a while its members take its leases, each a fair share."""

    async def scenario(world: MultiStreamWorld) -> None:
        leader = world.start("leader", (ORDERS,), mode="leader")
        world.put(64)
        await world.until(lambda: world.all_handled(ORDERS))
        world.service.update_shard_count(world.clock.wall_ms(), RETURNS, 4)
        first, second = world.start("first", mode="leader"), world.start("second", mode="leader")
        world.put(64)
        await world.until(world.all_handled, within_s=300)
        assert world.readers(RETURNS) == {first, second}
        assert leader in world.readers(ORDERS)

    run_scenario(scenario)


def test_a_missing_stream_does_not_delay_the_others() -> None:
    """The other streams are read. The missing one is read once it exists."""

    async def scenario(world: MultiStreamWorld) -> None:
        one = world.start("one", (*BOTH, "refunds"), mode="peer")
        world.put(16)
        await world.until(world.all_handled)
        assert any(
            isinstance(e, OperationFailed) and e.operation == "join stream refunds" for e in world.events[one]
        )
        world.service.create_stream(world.clock.wall_ms(), "refunds", shard_count=1)
        world.put(8, "refunds")
        await world.until(lambda: world.all_handled("refunds"))

    run_scenario(scenario)


@MODES
def test_a_stream_with_an_unreadable_row_is_read_once_the_row_is_repaired(mode: str) -> None:
    """The other stream is read meanwhile, even if the leader does not know the stream."""

    async def scenario(world: MultiStreamWorld) -> None:
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

    run_scenario(scenario)


@pytest.mark.parametrize(("first", "second"), [({"stream": ORDERS}, {}), ({}, {"stream": ORDERS})])
def test_a_table_has_leases_of_one_stream_or_of_several(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    """A member of the other kind does not start, because two sets of leases would deliver records twice."""

    async def scenario(world: MultiStreamWorld) -> None:
        world.start("first", mode="peer", **first)
        await world.until_leases(lambda number: number >= 2)
        refused = world.start("second", mode="peer", **second)
        await asyncio.wait({world.tasks[refused]})
        error = world.tasks.pop(refused).exception()
        assert isinstance(error, ConfigError)
        assert "another application name" in str(error)

    run_scenario(scenario)


def test_a_stream_that_is_listed_twice_is_refused() -> None:
    """With its name and its ARN, for example, its shards would have two sets of leases."""

    async def scenario(world: MultiStreamWorld) -> None:
        orders = MemoryStream(world.service, ORDERS, world.clock)
        streams = Streams(
            [
                TrackedStream(ORDERS, orders, FROM_OLDEST),
                TrackedStream("arn:aws:kinesis:us-east-1:000000000000:stream/orders", orders, FROM_OLDEST),
            ],
            is_multi_stream=True,
        )
        first, second = streams.tracked
        await streams.identify(first)
        with pytest.raises(ConfigError, match="the same stream"):
            await streams.identify(second)

    run_scenario(scenario)


class _StreamWithIdentifier(MemoryStream):
    """A stream with an identifier that a Java tracker made up."""

    async def get_identifier(self) -> StreamIdentifier:
        return StreamIdentifier(f"000000000000:{ORDERS}:1")


def test_a_stream_under_two_identifiers_is_refused() -> None:
    """With its name and with an identifier of the same account and name, each record would be read twice."""

    async def scenario(world: MultiStreamWorld) -> None:
        made_up = f"000000000000:{ORDERS}:1"
        tracked = (
            TrackedStream(made_up, _StreamWithIdentifier(world.service, ORDERS, world.clock), FROM_OLDEST),
            TrackedStream(RETURNS, MemoryStream(world.service, RETURNS, world.clock), FROM_OLDEST),
            TrackedStream(ORDERS, MemoryStream(world.service, ORDERS, world.clock), FROM_OLDEST),
        )
        streams = Streams(tracked, is_multi_stream=True)
        await streams.identify(tracked[0])
        await streams.identify(tracked[1])
        with pytest.raises(ConfigError, match="configure it once"):
            await streams.identify(tracked[2])
        of_orders = unknown_lease(stream=identifier(ORDERS), key=lease_key(FIRST, identifier(ORDERS)))
        assert streams.of(of_orders) is None

    run_scenario(scenario)


def test_events_and_health_distinguish_shards_of_the_same_name() -> None:
    """Events name the stream of a shard, and health counts both shards."""

    async def scenario(world: MultiStreamWorld) -> None:
        one = world.start("one", mode="peer")
        world.put(16)
        await world.until(world.all_handled)
        health = Health(HealthLimits(failover_ms=10_000, stuck_after_ms=300_000), 0)
        for event in world.events[one]:
            health.observe(event, 0)
        shards = health_to_json(health.report(0))["shards"]
        assert set(shards) == {f"{identifier(name)}:{shard}" for name in BOTH for shard in (FIRST, SECOND)}
        events = world.events[one]
        assert {e.shard_key for e in events if isinstance(e, LeaseTaken)} == set(shards)
        assert {e.shard_key for e in events if isinstance(e, PageRead)} == set(shards)
        assert {e.stream for e in events if isinstance(e, ShardsSynced)} == {
            identifier(name) for name in BOTH
        }

    run_scenario(scenario)


def test_iterated_shards_have_the_name_of_their_stream() -> None:
    """So do their batches, and the fencing tokens of shards of the same name differ."""
    offered: list[ShardBatches] = []

    async def scenario(world: MultiStreamWorld) -> None:
        world.start("one", mode="peer", handler=ShardIterationHandler(offered.append))
        await world.until(lambda: len(offered) == 4)
        assert sorted((each.stream, each.shard) for each in offered) == [
            (name, shard) for name in BOTH for shard in (FIRST, SECOND)
        ]
        assert len({each.fencing_token for each in offered}) == 4

    run_scenario(scenario)


def test_a_lease_session_of_another_process_is_not_disturbed() -> None:
    """A lease of an unknown stream that another process with the same worker id reads is not taken."""

    async def scenario(world: MultiStreamWorld) -> None:
        await world.table.create(unknown_lease())
        one = world.start("one", mode="leader")
        await world.until_leases(lambda number: number > 4)
        unknown = await world.table.get(lease_key(FIRST, UNKNOWN))
        assert unknown is not None
        held = await world.table.take(unknown, one, LeaseSessionId("another process"))
        for _ in range(20):
            assert isinstance(held, Lease)
            await world.clock.sleep_ms(2_000)
            held = await world.table.renew(held)
        assert isinstance(held, Lease)

    run_scenario(scenario)
