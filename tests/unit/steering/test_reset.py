"""A reset while workers run, on virtual time: exactly the records after the new position come again, in order."""

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest

from leasehold.adapters.memory.faults import FaultyRows, StoreFault
from leasehold.adapters.memory.stream import MemoryStream
from leasehold.core.model import LeaseKey, ShardId, WorkerId
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.steering.capture import CaptureLimits
from leasehold.core.steering.reset_target import ResetTarget, ToLatest, ToOldest, ToRecord, ToTime
from leasehold.errors import ConfigError, NotFoundError, RecreatedStreamError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import RowStore
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.steering.lease_capture import CapturePorts, LeaseCapture
from leasehold.steering.reset import ReadReset, ResetOutcome, ResetRequest, apply_reset, read_reset
from leasehold.steering.shard_positions import ShardPositions
from leasehold.worker.batch import Batch
from tests.kpl_encoder import add_frame, partition_key, user_record
from tests.unit.worker.worker_world import LEFT, ORDERS, RIGHT, SHARD, RunningWorker, WorkerWorld, texts

LIMITS = CaptureLimits(failover_ms=10_000, handoff_timeout_ms=30_000)
DAY_MS = 24 * 3_600_000


class Fleet(WorkerWorld):
    """Workers of one application, and what they have handled, in order."""

    def __init__(self, shards: int = 1, workers: int = 2, **options: object) -> None:
        super().__init__(shards=shards)
        self.handled: list[str] = []
        self.running: list[RunningWorker] = []
        self.options = {"initial_position": "trim_horizon", **options}
        for _ in range(workers):
            self.start_worker()

    def start_worker(self) -> None:
        async def handle(batch: Batch) -> None:
            self.handled += texts(batch)

        self.running.append(self.start(handle, max_wait="100ms", **self.options))

    async def put_slowly(self, *data: str | int, shard: int = 0) -> None:
        """Put records a second apart."""
        for each in data:
            self.put(each, shard=shard)
            await self.clock.sleep_ms(1_000)

    async def until_handled(self, *data: str | int, within_s: float = 60) -> None:
        """Wait until these records were handled."""
        expected = {str(each) for each in data}
        await self.until(lambda: expected <= set(self.handled), within_s=within_s)

    def positions(self) -> ShardPositions:
        stream = MemoryStream(self.service, ORDERS, self.clock)
        return ShardPositions(stream=stream, clock=self.clock, rng=random.Random(5), retention_ms=DAY_MS)

    async def plan(self, target: ResetTarget, shard: ShardId | None = None) -> ReadReset:
        return await read_reset(self.table, self.positions(), ResetRequest(target, shard))

    async def reset(
        self, target: ResetTarget, shard: ShardId | None = None, rows: RowStore | None = None
    ) -> ResetOutcome:
        """Run the command."""
        read = await self.plan(target, shard)
        ports = CapturePorts(table=LeaseTable(rows or self.rows), clock=self.clock, rng=random.Random(1))
        capture = LeaseCapture(ports, WorkerId("leasehold-reset"), LIMITS)
        self.handled.clear()
        return await apply_reset(capture, read, timeout_ms=120_000)

    async def end(self) -> None:
        for worker in self.running:
            assert await worker.stop_and_wait() is None


def test_a_time_brings_back_exactly_the_records_since_then_from_all_shards() -> None:
    """Two workers run, and records keep arriving."""

    async def scenario() -> None:
        fleet = Fleet(shards=2)
        for number in range(5):
            await fleet.put_slowly(f"a{number}", shard=0)
            await fleet.put_slowly(f"b{number}", shard=1)
        at_ms = fleet.clock.wall_ms()
        await fleet.put_slowly("a5", "a6", shard=0)
        await fleet.put_slowly("b5", shard=1)
        await fleet.until_handled("a6", "b5")
        outcome = await fleet.reset(ToTime(at_ms))
        assert (len(outcome.moved), outcome.forward) == (2, set())
        fleet.put("a7", shard=0)
        fleet.put("b6", shard=1)
        await fleet.until_handled("a5", "a6", "a7", "b5", "b6")
        assert Counter(fleet.handled) == Counter(["a5", "a6", "a7", "b5", "b6"])
        await fleet.end()

    run_in_virtual_time(scenario())


def test_latest_reports_what_it_skips_in_a_shard_without_a_lease() -> None:
    """Its row was deleted, or a member has not created it yet."""

    async def scenario() -> None:
        fleet = Fleet(shards=2, workers=1)
        await fleet.put_slowly("a0", shard=0)
        await fleet.put_slowly("b0", shard=1)
        await fleet.until_handled("a0", "b0")
        await fleet.end()
        await fleet.put_slowly("b1", shard=1)
        other = next(each for each in (await fleet.table.list()).leases if each.shard_id != SHARD)
        assert await fleet.table.delete(other)
        (new,) = (await fleet.plan(ToLatest())).plan.create
        assert (new.lease.key, new.is_forward) == (other.key, True)
        outcome = await fleet.reset(ToLatest())
        assert outcome.created == outcome.forward == {other.key}

    run_in_virtual_time(scenario())


def test_a_time_after_the_newest_record_changes_nothing_for_workers_that_have_read_it() -> None:
    """No lease is taken from its owner."""

    async def scenario() -> None:
        fleet = Fleet(workers=1)
        await fleet.put_slowly("a", "b")
        await fleet.until_handled("b")
        await fleet.clock.sleep_ms(60_000)
        plan = (await fleet.plan(ToTime(fleet.clock.wall_ms()))).plan
        assert plan.is_empty
        assert [each.key for each in plan.unchanged] == [LeaseKey(SHARD)]
        await fleet.end()

    run_in_virtual_time(scenario())


def test_one_shard_goes_back_to_its_oldest_record_and_the_other_reads_on() -> None:
    """Only the named shard is captured."""

    async def scenario() -> None:
        fleet = Fleet(shards=2)
        await fleet.put_slowly("a0", "a1", shard=0)
        await fleet.put_slowly("b0", shard=1)
        await fleet.until_handled("a1", "b0")
        outcome = await fleet.reset(ToOldest(), SHARD)
        assert outcome.moved == {LeaseKey(SHARD)}
        fleet.put("b1", shard=1)
        await fleet.until_handled("a0", "a1", "b1")
        await fleet.clock.sleep_ms(30_000)
        assert Counter(fleet.handled) == Counter(["a0", "a1", "b1"])
        await fleet.end()

    run_in_virtual_time(scenario())


def test_latest_skips_what_waits_and_never_sets_a_reader_back() -> None:
    """A backlog without a worker is skipped. A worker at the tip keeps its position."""

    async def scenario() -> None:
        fleet = Fleet(workers=1)
        await fleet.put_slowly("a", "b")
        await fleet.until_handled("b")
        await fleet.end()
        await fleet.put_slowly("skipped 1", "skipped 2")
        outcome = await fleet.reset(ToLatest())
        assert outcome.moved == outcome.forward == {LeaseKey(SHARD)}
        fleet.put("c")
        fleet.running.clear()
        fleet.start_worker()
        await fleet.until_handled("c")
        assert fleet.handled == ["c"]
        plan = (await fleet.plan(ToLatest())).plan
        fleet.put("d")
        await fleet.until_handled("d")
        assert len(plan.moves) <= 1
        await fleet.reset(ToLatest())
        fleet.put("e")
        await fleet.until_handled("e")
        assert fleet.handled == ["e"]
        await fleet.end()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("is_cleaned_up", [False, True], ids=["lease at its end", "lease deleted"])
def test_a_shard_that_had_ended_is_read_again_before_its_children(is_cleaned_up: bool) -> None:
    """The children are set to their first record and wait, also if the lease of the parent had been deleted."""

    async def scenario() -> None:
        fleet = Fleet(workers=2)
        await fleet.put_slowly("p0", "p1")
        at_ms = fleet.clock.wall_ms()
        await fleet.put_slowly("p2", "p3")
        fleet.split()
        fleet.shards = 2
        await fleet.put_slowly("l0", "l1", shard=0)
        await fleet.put_slowly("r0", shard=1)
        await fleet.until_handled("l1", "r0")
        if is_cleaned_up:
            while await fleet.table.get(LeaseKey(SHARD)) is not None:
                await fleet.clock.sleep_ms(10_000)
        outcome = await fleet.reset(ToTime(at_ms))
        assert (LeaseKey(SHARD) in outcome.created) == is_cleaned_up
        assert {LEFT, RIGHT} <= outcome.moved
        await fleet.until_handled("l1", "r0")
        assert Counter(fleet.handled) == Counter(["p2", "p3", "l0", "l1", "r0"])
        assert max(map(fleet.handled.index, ("p2", "p3"))) < min(map(fleet.handled.index, ("l0", "r0")))
        fleet.put("l2")
        await fleet.until_handled("l2")
        await fleet.end()

    run_in_virtual_time(scenario())


def test_a_merged_shard_begins_anew_without_its_parents() -> None:
    """Its parents were finished and cleaned up before the target: they are not read again."""

    async def scenario() -> None:
        fleet = Fleet(shards=2, workers=1)
        await fleet.put_slowly("a", shard=0)
        await fleet.put_slowly("b", shard=1)
        fleet.service.merge_shards(fleet.clock.wall_ms(), ORDERS, SHARD, LEFT)
        await fleet.clock.sleep_ms(5_000)
        at_ms = fleet.clock.wall_ms()
        await fleet.put_slowly("m0", "m1", shard=0)
        await fleet.until_handled("a", "b", "m1")
        while await fleet.table.get(LeaseKey(SHARD)) is not None:
            await fleet.clock.sleep_ms(10_000)
        await fleet.reset(ToTime(at_ms))
        await fleet.until_handled("m1")
        await fleet.clock.sleep_ms(300_000)
        assert fleet.handled == ["m0", "m1"]
        await fleet.end()

    run_in_virtual_time(scenario())


def test_a_shard_that_ends_during_the_reset_is_planned_again() -> None:
    """Its children have begun, and the plan did not hold them back."""

    async def scenario() -> None:
        fleet = Fleet(workers=1)
        await fleet.put_slowly("p0", "p1")
        await fleet.until_handled("p1")
        read = await fleet.plan(ToOldest())
        fleet.split()
        fleet.shards = 2
        fleet.put("l0")
        await fleet.until_handled("l0")
        capture = LeaseCapture(
            CapturePorts(table=fleet.table, clock=fleet.clock, rng=random.Random(1)),
            WorkerId("reset"),
            LIMITS,
        )
        outcome = await apply_reset(capture, read, timeout_ms=60_000)
        assert outcome.outdated == {SHARD}
        assert not outcome.moved
        await fleet.reset(ToOldest())
        await fleet.until_handled("p0", "p1", "l0")
        assert fleet.handled == ["p0", "p1", "l0"]
        await fleet.end()

    run_in_virtual_time(scenario())


def test_a_reset_that_is_killed_at_any_write_leaves_old_or_new_positions() -> None:
    """Every lease is at its old or its new position, none is stuck, and nothing is lost."""

    async def scenario(last_write: int) -> bool:
        fleet = Fleet(workers=2)
        await fleet.put_slowly("p0", "p1")
        fleet.split()
        fleet.shards = 2
        await fleet.put_slowly("l0", shard=0)
        await fleet.put_slowly("r0", shard=1)
        await fleet.until_handled("p1", "l0", "r0")
        await fleet.clock.sleep_ms(10_000)  # until all of it is checkpointed
        old = {key: (await fleet.lease(key)).checkpoint for key in (SHARD, LEFT, RIGHT)}
        writes, is_killed = 0, False

        def fault_for(call: str, _key: str) -> StoreFault | None:
            nonlocal writes, is_killed
            writes += call == "write"
            if call == "write" and writes > last_write:
                is_killed = True
                raise asyncio.CancelledError
            return None

        try:
            await fleet.reset(ToOldest(), rows=FaultyRows(fleet.rows, fault_for))
        except asyncio.CancelledError:
            assert is_killed
        now = {key: (await fleet.lease(key)).checkpoint for key in (SHARD, LEFT, RIGHT)}
        assert now == old if is_killed else now[LEFT] == now[RIGHT] == TRIM_HORIZON
        fleet.put("l1", shard=0)
        fleet.put("r1", shard=1)
        await fleet.until_handled("l1", "r1", within_s=120)
        await fleet.reset(ToOldest())
        await fleet.until_handled("p0", "p1", "l0", "l1", "r0", "r1", within_s=120)
        assert fleet.handled[:2] == ["p0", "p1"]
        await fleet.end()
        return is_killed

    last_write = 0
    while run_in_virtual_time(scenario(last_write)):
        last_write += 1
    assert last_write > 4


def test_a_reset_that_is_cancelled_at_any_time_gives_its_leases_back_at_once() -> None:
    """No row names the command any more, so no shard waits for the failover time. Positions are old or new."""

    async def scenario(after_ms: int) -> bool:
        fleet = Fleet(shards=2)
        fleet.delay_writes(70)
        await fleet.put_slowly("a0", shard=0)
        await fleet.put_slowly("b0", shard=1)
        await fleet.until_handled("a0", "b0")
        await fleet.clock.sleep_ms(10_000)  # until both are checkpointed
        old = {lease.key: lease.checkpoint for lease in (await fleet.table.list()).leases}
        command = asyncio.create_task(fleet.reset(ToOldest()))
        await fleet.clock.sleep_ms(after_ms)
        is_done = command.done()
        command.cancel()
        await asyncio.wait([command])
        leases = (await fleet.table.list()).leases
        assert not [each for each in leases if "leasehold-reset" in {each.owner, each.checkpoint_owner}]
        assert all(each.checkpoint in {old[each.key], TRIM_HORIZON} for each in leases)
        began_ms = fleet.clock.now_ms()
        fleet.put("a1", shard=0)
        fleet.put("b1", shard=1)
        await fleet.until_handled("a1", "b1")
        assert fleet.clock.now_ms() - began_ms < LIMITS.failover_ms
        await fleet.end()
        return is_done

    after_ms = 0
    while not run_in_virtual_time(scenario(after_ms)):
        after_ms += 40
    assert after_ms > 500


def test_a_time_inside_a_run_of_aggregates_lies_after_the_last_user_record() -> None:
    """With another sub-sequence number, user records of the aggregate before it would come again."""

    async def scenario() -> None:
        fleet = Fleet(workers=0)
        fleet.put(add_frame(partition_key(b"k") + user_record(0, None, b"x") * 3))
        await fleet.clock.sleep_ms(5_000)
        at_ms = fleet.clock.wall_ms()
        fleet.put("later")
        graph = await fleet.positions().stream.list_shards()
        (start,) = (await fleet.positions().find_starts(graph, ToTime(at_ms))).values()
        assert start.position.sub_sequence_number == 2
        assert not start.is_at_end

    run_in_virtual_time(scenario())


def test_positions_that_do_not_exist_are_refused_before_anything_is_written() -> None:
    """The sentence names the cause and the remedy."""

    async def scenario() -> None:
        fleet = Fleet(workers=1)
        fleet.put("a")
        await fleet.until_handled("a")
        number = fleet.sequence_numbers[b"a"]
        wrong: list[tuple[ResetTarget, ShardId | None, str]] = [
            (ToRecord(Position(str(int(number) + 1))), SHARD, "has no record"),
            (ToRecord(Position(number, 7)), SHARD, "no user record 7"),
            (ToOldest(), ShardId("shardId-000000000009"), "no such shard"),
            (ToTime(fleet.clock.wall_ms() + 60_000), None, "in the future"),
            (ToTime(fleet.clock.wall_ms() - 2 * DAY_MS), None, "retains records since"),
        ]
        for target, shard, message in wrong:
            with pytest.raises((NotFoundError, ConfigError), match=message):
                await fleet.plan(target, shard)
        await fleet.end()
        assert (await fleet.plan(ToRecord(Position(number)), SHARD)).plan.is_empty
        with pytest.raises(NotFoundError, match="no leases"):
            await Fleet(workers=0).plan(ToOldest())

    run_in_virtual_time(scenario())


def test_a_reset_of_leases_of_another_stream_is_refused() -> None:
    """Shards of two streams have the same ids. An older stream has the same shards, at earlier times."""

    async def scenario() -> None:
        fleet = Fleet(shards=2, workers=0)
        fleet.service.create_stream(fleet.clock.wall_ms(), "older", shard_count=2)
        fleet.service.delete_stream(fleet.clock.wall_ms(), ORDERS)
        await fleet.clock.sleep_ms(60_000)
        fleet.service.create_stream(fleet.clock.wall_ms(), ORDERS, shard_count=2)
        await fleet.clock.sleep_ms(60_000)
        fleet.start_worker()
        fleet.put("a", shard=0)
        fleet.put("b", shard=1)
        await fleet.until_handled("a", "b")
        await fleet.end()
        positions = replace(fleet.positions(), stream=MemoryStream(fleet.service, "older", fleet.clock))
        for target in (ToOldest(), ToTime(fleet.clock.wall_ms() - 1_000), ToLatest()):
            with pytest.raises(RecreatedStreamError, match=r"belong to another stream.*check --stream"):
                await read_reset(fleet.table, positions, ResetRequest(target, None))
        # A checkpoint that somebody has damaged can be set by the name of its shard.
        assert not (await read_reset(fleet.table, positions, ResetRequest(ToOldest(), SHARD))).plan.is_empty

    run_in_virtual_time(scenario())
