"""A held lease: its parents, its heartbeats, and what their responses contain."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.leases import lease_rules
from leasehold.core.leases.lease_row import lease_from_row
from leasehold.core.leases.row_writes import DeleteRow, Row, RowWrite
from leasehold.core.model import (
    ChildShard,
    HashRange,
    Lease,
    LeaseKey,
    LeaseSessionId,
    Shard,
    ShardId,
    StreamIdentifier,
    WorkerId,
    lease_key,
    stream_identifier,
)
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position
from leasehold.errors import (
    CheckpointRejectedError,
    LeaseholdError,
    LeaseLostError,
    MalformedRowError,
    ThrottledError,
    UnavailableError,
)
from leasehold.fleet.held_lease import HeldLease, OnResponse, PendingCheckpoint
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Applied, Refused
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from tests.unit.fleet.world import ListedStream

PARENTS = (ShardId("s-0"), ShardId("s-1"))


class _OneFailsOneHangs(MemoryRows):
    """A store with two rows: one cannot be read, and reading the other takes an hour."""

    async def get(self, key: str) -> Row | None:
        if key == PARENTS[0]:
            raise UnavailableError("no response")
        await asyncio.sleep(3_600)
        return None


class OnePending(PendingCheckpoint):
    """One position that is done and not stored."""

    def __init__(self, held: HeldLease, done: Position) -> None:
        self._held = held
        self._done: Position | None = done

    async def store_with_heartbeat(self) -> bool:
        if self._done is None:
            return False
        await self._held.checkpoint(self._done)
        self._done = None
        return True

    async def store_before_release(self) -> None:
        await self.store_with_heartbeat()


def _child(stream: StreamIdentifier | None = None) -> Lease:
    return Lease(
        key=lease_key(ShardId("s-2"), stream),
        shard_id=ShardId("s-2"),
        checkpoint=TRIM_HORIZON,
        parents=frozenset(PARENTS),
        owner=WorkerId("w"),
        session=LeaseSessionId("h"),
        stream=stream,
    )


def _hold(lease: Lease, table: LeaseTable, clock: VirtualClock) -> HeldLease:
    return HeldLease(
        lease,
        table=table,
        operations=Operations(clock, random.Random(1), lambda _: None),
        settings=FleetSettings(),
        taken_at_ms=0,
        on_response=lambda _: None,
    )


def test_a_failed_read_cancels_the_concurrent_ones() -> None:
    """After the failure the member may stop, and no task may be left."""

    async def scenario() -> None:
        held = _hold(_child(), LeaseTable(_OneFailsOneHangs()), VirtualClock())
        with pytest.raises(UnavailableError):
            await held.wait_for_parents(ListedStream([]))
        assert held.is_waiting_for_parents
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_in_virtual_time(scenario())


def test_parents_are_looked_up_in_the_stream_of_the_lease() -> None:
    """Two streams have shards with the same ids. The child of one does not wait for, or pass, those of the other."""
    stream = stream_identifier("000000000000", "orders", 1)

    async def scenario() -> None:
        clock, table = VirtualClock(), LeaseTable(MemoryRows())
        child = _child(stream)
        for parent in PARENTS:
            await table.create(
                Lease(key=lease_key(parent, stream), shard_id=parent, checkpoint=TRIM_HORIZON, stream=stream)
            )
        held = _hold(child, table, clock)
        waiting = asyncio.create_task(held.wait_for_parents(ListedStream([])))
        await clock.sleep_ms(60_000)
        assert not waiting.done()
        waiting.cancel()
        unrelated = LeaseTable(MemoryRows())
        for parent in PARENTS:
            await unrelated.create(Lease(key=lease_key(parent), shard_id=parent, checkpoint=TRIM_HORIZON))
        held = _hold(child, unrelated, clock)
        await held.wait_for_parents(ListedStream([]))
        assert not held.is_waiting_for_parents

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("deleted", [PARENTS[:1], PARENTS])
@pytest.mark.parametrize("moment_ms", [0, 60_000])
def test_a_lost_parent_is_read_again_before_a_merged_child(
    deleted: tuple[ShardId, ...], moment_ms: int
) -> None:
    """The end of one parent creates the child. The lease of the other parent is deleted while it is being read."""

    async def scenario() -> None:
        clock, table = VirtualClock(), LeaseTable(MemoryRows())
        for parent in PARENTS:
            at = TRIM_HORIZON if parent in deleted else SHARD_END
            await table.create(Lease(key=lease_key(parent), shard_id=parent, checkpoint=at))
        shards = [
            Shard(parent, HashRange(index, index + 1), "1", "5") for index, parent in enumerate(PARENTS)
        ]
        waiting = asyncio.create_task(_hold(_child(), table, clock).wait_for_parents(ListedStream(shards)))
        await clock.sleep_ms(moment_ms)
        for parent in deleted:
            lease = await table.get(lease_key(parent))
            assert lease is not None
            await table.delete(lease)
        await clock.sleep_ms(60_000)
        assert not waiting.done()
        for parent in deleted:
            lease = await table.get(lease_key(parent))
            assert lease is not None
            assert lease.checkpoint == TRIM_HORIZON
        waiting.cancel()

    run_in_virtual_time(scenario())


def test_a_parent_that_left_the_stream_is_not_waited_for() -> None:
    """It cannot be read any more."""

    async def scenario() -> None:
        clock, table = VirtualClock(), LeaseTable(MemoryRows())
        await _hold(_child(), table, clock).wait_for_parents(ListedStream([]))
        assert not (await table.list()).leases

    run_in_virtual_time(scenario())


def test_a_lease_that_was_reset_needs_no_parents() -> None:
    """An operator reads a merged shard again, whose parents were finished and deleted long ago."""

    async def scenario() -> None:
        clock, table = VirtualClock(), LeaseTable(MemoryRows())
        shards = [
            Shard(parent, HashRange(index, index + 1), "1", "5") for index, parent in enumerate(PARENTS)
        ]
        reset = replace(_child(), counter=400)
        await _hold(reset, table, clock).wait_for_parents(ListedStream(shards))
        assert not (await table.list()).leases

    run_in_virtual_time(scenario())


class _LosesNextResponse(MemoryRows):
    """Applies the next write and a concurrent one, and loses the response."""

    def __init__(self) -> None:
        super().__init__()
        self.concurrent_write: RowWrite | None = None

    async def write(self, write: RowWrite) -> Applied | Refused:
        answer = await super().write(write)
        if self.concurrent_write is not None:
            write_now, self.concurrent_write = self.concurrent_write, None
            await super().write(write_now)
            raise UnavailableError("no response")
        return answer


async def _held(rows: MemoryRows, on_response: OnResponse = lambda _: None) -> HeldLease:
    """Take a lease."""
    table = LeaseTable(rows)
    free = Lease(key=LeaseKey("s-2"), shard_id=ShardId("s-2"), checkpoint=TRIM_HORIZON)
    await table.create(free)
    lease = await table.take(free, WorkerId("w"), LeaseSessionId("h"))
    assert isinstance(lease, Lease)
    return HeldLease(
        lease,
        table=table,
        operations=Operations(VirtualClock(), random.Random(1), lambda _: None),
        settings=FleetSettings(),
        taken_at_ms=0,
        on_response=on_response,
    )


class _WritesAfterTransaction(MemoryRows):
    """Another process writes between a transaction and the read of its result."""

    def __init__(self, write: Callable[[Lease], RowWrite]) -> None:
        super().__init__()
        self._write_next = write

    async def write_transaction(self, writes: Sequence[RowWrite]) -> bool:
        done = await super().write_transaction(writes)
        row = await self.get(writes[-1].key)
        assert done
        assert row is not None
        await self.write(self._write_next(lease_from_row(row)))
        return done


@pytest.mark.parametrize(
    "write",
    [
        lease_rules.release,
        lambda lease: lease_rules.take(lease, WorkerId("other"), LeaseSessionId("other's")),
        lambda lease: lease_rules.take(lease, WorkerId("w"), LeaseSessionId("of a second process")),
        lease_rules.delete,
    ],
    ids=["released", "taken", "taken by our worker id", "deleted"],
)
def test_a_lease_that_changes_hands_right_after_the_end_of_its_shard_stays_as_it_is(
    write: Callable[[Lease], RowWrite],
) -> None:
    """The end was written. But the row that is read next belongs to another process, and nothing is written to it."""

    async def scenario() -> None:
        rows = _WritesAfterTransaction(write)
        held = await _held(rows)
        await held.finish([])
        assert held.has_ended
        row = await rows.get("s-2")
        with suppress(LeaseLostError):  # if it is free, the release has its effect already
            await held.release()
        assert await rows.get("s-2") == row

    run_in_virtual_time(scenario())


def test_a_worker_that_takes_its_own_lease_again_does_not_read_for_the_first_time() -> None:
    """It was paused before its first heartbeat, so only the session in the row shows that it has read the shard."""

    async def scenario() -> None:
        rows = MemoryRows()
        first = await _held(rows)
        assert first.is_first_reading
        lease = await LeaseTable(rows).take(first.lease, WorkerId("w"), LeaseSessionId("h2"))
        assert isinstance(lease, Lease)
        again = HeldLease(
            lease,
            table=LeaseTable(rows),
            operations=Operations(VirtualClock(), random.Random(1), lambda _: None),
            settings=FleetSettings(),
            taken_at_ms=0,
            on_response=lambda _: None,
            earlier_session=first.lease.session,
        )
        assert not again.is_first_reading

    run_in_virtual_time(scenario())


@pytest.mark.parametrize(
    ("counter", "switches", "is_first"), [(1, 0, True), (2, 0, True), (3, 0, False), (1, 1, False)]
)
def test_the_first_reading_is_known_from_the_counters_of_the_row(
    counter: int, switches: int, is_first: bool
) -> None:
    """A lease is assigned and begun with two increments. With a third, another member has sent a heartbeat."""

    async def scenario() -> None:
        lease = replace(_child(), counter=counter, owner_switches=switches)
        held = _hold(lease, LeaseTable(MemoryRows()), VirtualClock())
        assert held.is_first_reading == is_first

    run_in_virtual_time(scenario())


def test_a_handoff_is_noticed_however_the_row_is_read() -> None:
    """If the response to a heartbeat was lost, the row that is read to resolve it may show a handoff."""

    async def scenario() -> None:
        rows = _LosesNextResponse()
        held = await _held(rows)
        rows.concurrent_write = lease_rules.request_handoff(held.lease, WorkerId("other"))
        await held.renew()
        assert held.lease.is_in_handoff
        assert held.draining.is_set()

    run_in_virtual_time(scenario())


def test_a_response_to_a_heartbeat_contains_a_nudge() -> None:
    """A nudge is reported once, with the next response."""

    async def scenario() -> None:
        nudged: list[bool] = []
        rows = MemoryRows()
        held = await _held(rows, nudged.append)
        await held.renew()
        await rows.write(lease_rules.nudge(held.lease, "first"))
        await held.renew()
        await held.renew()
        await rows.write(lease_rules.nudge(held.lease, "second"))
        await held.checkpoint(Position("7"))
        assert nudged == [False, True, False, True]

    run_in_virtual_time(scenario())


def test_a_heartbeat_includes_a_due_checkpoint() -> None:
    """One write instead of two. Without a due checkpoint it is a plain heartbeat."""

    async def scenario() -> None:
        held = await _held(MemoryRows())
        held.store_pending(OnePending(held, Position("7")))
        before = held.lease.counter
        await held.renew()
        assert (held.lease.checkpoint, held.lease.counter) == (Position("7"), before + 1)
        await held.renew()
        assert (held.lease.checkpoint, held.lease.counter) == (Position("7"), before + 2)

    run_in_virtual_time(scenario())


def test_a_release_stores_the_pending_checkpoint_first() -> None:
    """The next owner repeats nothing that is done."""

    async def scenario() -> None:
        rows = MemoryRows()
        held = await _held(rows)
        held.store_pending(OnePending(held, Position("7")))
        await held.release()
        assert held.lease.checkpoint == Position("7")
        assert held.lease.owner is None

    run_in_virtual_time(scenario())


def test_a_released_lease_gets_no_heartbeat() -> None:
    """A heartbeat that was due during the release is not reported as a failure."""

    async def scenario() -> None:
        held = await _held(MemoryRows())
        held.store_pending(OnePending(held, Position("7")))
        await held.release()
        held.store_pending(OnePending(held, Position("8")))
        await held.renew()
        assert (held.lease.owner, held.lease.checkpoint) == (None, Position("7"))
        held.check_expiry(VirtualClock().now_ms() + 3_600_000)
        assert not held.lost.is_set()

    run_in_virtual_time(scenario())


class _CannotStore(OnePending):
    """A checkpoint that fails, although the table can be written a moment later."""

    def __init__(self, held: HeldLease, error: LeaseholdError) -> None:
        super().__init__(held, Position("7"))
        self._error = error

    async def store_before_release(self) -> None:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        CheckpointRejectedError("rejected"),
        MalformedRowError("s-2", "damaged"),
        UnavailableError("no response"),
        ThrottledError("too many requests"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("next_owner", [None, WorkerId("next")])
def test_a_lease_whose_checkpoint_cannot_be_stored_is_not_released(
    error: LeaseholdError, next_owner: WorkerId | None
) -> None:
    """It expires instead: a release says that everything that is done is stored."""

    async def scenario() -> None:
        rows = MemoryRows()
        held = await _held(rows)
        held.store_pending(_CannotStore(held, error))
        with pytest.raises(type(error)):
            await held.release(next_owner)
        assert held.is_valid()
        lease = await LeaseTable(rows).get(held.lease.key)
        assert lease is not None
        assert lease.owner == "w"

    run_in_virtual_time(scenario())


def test_the_end_of_a_shard_does_not_wait_for_another_parent_if_the_lease_must_be_released() -> None:
    """The stream may not be read any more: then nobody creates the lease of the other parent."""

    async def scenario() -> None:
        rows = MemoryRows()
        held = await _held(rows)
        child = ChildShard(ShardId("s-9"), (held.shard, ShardId("s-3")), HashRange(0, 9))
        ending = asyncio.create_task(held.finish([child]))
        await asyncio.sleep(0.001)
        assert not ending.done()
        held.drain()
        with pytest.raises(UnavailableError, match="the lease is released"):
            await asyncio.wait_for(ending, 0.5)

    run_in_virtual_time(scenario())


class _ReadsSlowly(MemoryRows):
    """Returns rows as they were when the request arrived, five seconds later."""

    async def get(self, key: str) -> Row | None:
        row = await super().get(key)
        await asyncio.sleep(5)
        return row


def test_a_read_that_is_slower_than_a_write_does_not_undo_it() -> None:
    """The writes of a lease and the reads of its row come one after the other, so the lease is never an older row."""

    async def scenario() -> None:
        held = await _held(_ReadsSlowly())
        async with asyncio.TaskGroup() as group:
            group.create_task(held.refresh())
            await asyncio.sleep(1)
            group.create_task(held.checkpoint(Position("7")))
        assert held.lease.checkpoint == Position("7")

    run_in_virtual_time(scenario())


class _AppliesLate(MemoryRows):
    """Three times no response to a write; then the first of these writes is applied, before the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[RowWrite] | None = None

    async def write(self, write: RowWrite) -> Applied | Refused:
        if self.late is not None and len(self.late) < 3:
            self.late.append(write)
            raise UnavailableError("no response")
        if self.late:
            await super().write(self.late[0])
            self.late = None
        return await super().write(write)


@pytest.mark.parametrize("is_repeated", [False, True])
@pytest.mark.parametrize("is_read", [False, True])
def test_a_lease_is_valid_from_the_first_write_that_may_have_been_applied(
    is_repeated: bool, is_read: bool
) -> None:
    """The repeated heartbeat is refused, because the first one arrived late. Other members count from its arrival.

    A row that is read in between and still has the old counter does not show that the first one will not arrive.
    """

    async def scenario() -> None:
        rows = _AppliesLate()
        held, clock = await _held(rows), VirtualClock()
        await clock.sleep_ms(1_000)
        rows.late = []
        sent_ms = clock.now_ms()
        if is_repeated:
            waiting = asyncio.create_task(held.renew())
            await asyncio.sleep(0)
            waiting.cancel()
            await clock.sleep_ms(2_000)
            if is_read:
                await held.refresh()
        await held.renew()
        assert clock.now_ms() > sent_ms
        assert held.last_write.at_ms == sent_ms
        await clock.sleep_ms(1_000)
        await held.renew()
        assert held.last_write.at_ms == clock.now_ms()

    run_in_virtual_time(scenario())


def test_an_expired_lease_is_not_read_again() -> None:
    """The row may still name us, and another member may be about to take it."""

    async def scenario() -> None:
        held = await _held(MemoryRows())
        await VirtualClock().sleep_ms(milliseconds(FleetSettings().lease_valid_for))
        with pytest.raises(LeaseLostError):
            await held.refresh()
        assert held.lost.is_set()

    run_in_virtual_time(scenario())


def test_only_an_applied_write_proves_a_lease() -> None:
    """A promotion that changes nothing, because the lease has another pin or none, proves nothing about the owner."""

    async def scenario() -> None:
        held = await _held(MemoryRows())
        last = held.last_write
        await held.promote(Position("7"))
        assert held.last_write is last

    run_in_virtual_time(scenario())


def test_a_shard_waits_for_a_parent_whose_row_cannot_be_read() -> None:
    """The row does not show whether the parent has ended, so the shard waits, and is not given up."""

    async def scenario() -> None:
        rows, clock = (
            MemoryRows([{"leaseKey": {"S": PARENTS[0]}, "checkpoint": {"S": "SHARD_END"}}]),
            VirtualClock(),
        )
        held = _hold(_child(), LeaseTable(rows), clock)
        waiting = asyncio.create_task(held.wait_for_parents(ListedStream([])))
        await clock.sleep_ms(60_000)
        assert not waiting.done()
        await rows.write(DeleteRow(key=PARENTS[0], when=()))
        await clock.sleep_ms(5_000)
        assert waiting.done()
        await waiting

    run_in_virtual_time(scenario())
