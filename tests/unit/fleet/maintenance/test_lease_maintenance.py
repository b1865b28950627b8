"""One member maintains the leases of several streams. A problem with one stream does not affect the others."""

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta

import pytest

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import FleetSettings
from leasehold.core.events import Event, OperationFailed
from leasehold.core.leases.row_writes import DeleteRow
from leasehold.core.model import InitialPosition, Lease, Shard, ShardId, StreamIdentifier, lease_key
from leasehold.core.position import SHARD_END, TRIM_HORIZON
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.errors import NotFoundError
from leasehold.fleet.maintenance.lease_maintenance import CHECK_KEY_FORMAT, JOIN_RETRY_MS, LeaseMaintenance
from leasehold.fleet.operations import Operations
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from leasehold.tasks import cancel_and_wait
from tests.unit.fleet.world import ListedStream, even_shards

SETTINGS = FleetSettings()


class _Late(ListedStream):
    """A stream that does not exist at first."""

    is_there = False

    async def get_identifier(self) -> StreamIdentifier:
        if not self.is_there:
            raise NotFoundError(f"stream {self.name} is not there")
        return await super().get_identifier()


class _Slow(ListedStream):
    """A stream whose listing takes a given time."""

    takes_ms = 0

    def __init__(self, clock: VirtualClock, name: str) -> None:
        super().__init__(even_shards(1), name)
        self._clock = clock

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        await self._clock.sleep_ms(self.takes_ms)
        return await super().list_shards(shard_filter)


class _Several:
    """The lease maintenance of a member with several streams. Create it inside the virtual loop."""

    def __init__(self, *streams: tuple[str, ListedStream], settings: FleetSettings = SETTINGS) -> None:
        self.told: list[Event] = []
        self.rows, self.clock = MemoryRows(), VirtualClock()
        self.table = LeaseTable(self.rows)
        tracked = [TrackedStream(name, stream, InitialPosition(TRIM_HORIZON)) for name, stream in streams]
        operations = Operations(self.clock, random.Random(1), self.told.append)
        self.streams = Streams(tracked, is_multi_stream=True)
        self.tending = LeaseMaintenance(self.table, self.streams, settings, operations)

    @property
    def known(self) -> StreamIdentifier:
        """The identifier of the only stream."""
        (identifier,) = self.streams.identifiers
        return identifier

    def failures(self, operation: str) -> list[str]:
        """What was told of a step."""
        return [
            each.error
            for each in self.told
            if isinstance(each, OperationFailed) and each.operation == operation
        ]

    async def streams_with_leases(self) -> set[StreamIdentifier | None]:
        """The streams that have leases."""
        return {lease.stream for lease in (await self.table.list()).leases}


def test_a_problem_with_one_stream_does_not_keep_another_from_being_found() -> None:
    """Two streams did not exist at the start. One is a duplicate; the other is joined anyway."""

    async def scenario() -> None:
        orders, again, refunds = (
            ListedStream(even_shards(1), "orders"),
            _Late(even_shards(1), "orders"),
            _Late(even_shards(1), "refunds"),
        )
        several = _Several(("orders", orders), ("arn:orders", again), ("refunds", refunds))
        await several.tending.join()
        again.is_there = refunds.is_there = True
        joining = asyncio.create_task(several.tending.join_rest())
        await several.clock.sleep_ms(2 * JOIN_RETRY_MS + 1)
        assert await refunds.get_identifier() in await several.streams_with_leases()
        _not_there, *twice = several.failures("join stream arn:orders")
        assert len(twice) == 2
        assert all("the same stream" in each for each in twice)
        await cancel_and_wait(joining)

    run_in_virtual_time(scenario())


def test_leases_of_the_other_mode_that_appear_later_are_reported() -> None:
    """Members with `stream=` and with `streams=` started together. Each audit reports it, and later audits continue."""

    async def scenario() -> None:
        several = _Several(("orders", ListedStream(even_shards(2), "orders")))
        await several.tending.join()
        await several.tending.audit(1)
        assert not several.failures(CHECK_KEY_FORMAT)
        shard = ShardId("shardId-000000000000")
        await several.table.create(Lease(key=lease_key(shard), shard_id=shard, checkpoint=TRIM_HORIZON))
        missed = next(lease for lease in (await several.table.list()).leases if lease.stream is not None)
        await several.rows.write(DeleteRow(key=missed.key, when=()))
        for _ in range(SETTINGS.audit_confirmations):
            await several.tending.audit(1)
        told = several.failures(CHECK_KEY_FORMAT)
        assert len(told) == SETTINGS.audit_confirmations
        assert "another application name" in told[0]
        assert await several.table.get(missed.key) is not None

    run_in_virtual_time(scenario())


def test_a_stream_can_be_added_while_the_others_are_audited() -> None:
    """A stream that is added during an audit is part of the next one."""

    async def scenario() -> None:
        slow, late = _Slow(VirtualClock(), "orders"), _Late(even_shards(1), "refunds")
        several = _Several(("orders", slow), ("refunds", late))
        await several.tending.join()
        late.is_there, slow.takes_ms = True, 2 * JOIN_RETRY_MS
        joining = asyncio.create_task(several.tending.join_rest())
        await several.tending.audit(1)
        await several.clock.sleep_ms(JOIN_RETRY_MS)
        await cancel_and_wait(joining)
        assert await late.get_identifier() in await several.streams_with_leases()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize(
    ("settings", "stays_min"),
    [
        (FleetSettings(), 2),
        (FleetSettings(keep_finished_for=timedelta(minutes=10)), 10),
        (FleetSettings(clean_up=False), None),
    ],
)
def test_finished_leases_are_deleted_when_the_settings_say_so(
    settings: FleetSettings, stays_min: int | None
) -> None:
    """By default after two minutes, later, or never."""

    async def scenario() -> None:
        several = _Several(("orders", ListedStream(even_shards(2), "orders")), settings=settings)
        await several.tending.join()
        gone = Lease(
            key=lease_key(ShardId("shardId-000000000009"), several.known),
            shard_id=ShardId("shardId-000000000009"),
            stream=several.known,
            checkpoint=SHARD_END,
        )
        await several.table.create(gone)
        deleted_after_min = None
        for minute in range(15):
            await several.tending.clean_up(1)
            if deleted_after_min is None and await several.table.get(gone.key) is None:
                deleted_after_min = minute
            await several.clock.sleep_ms(60_000)
        assert deleted_after_min == stays_min

    run_in_virtual_time(scenario())


def test_an_audit_lists_the_shards_of_a_stream_once() -> None:
    """Both the search for holes and the check whether the stream was recreated use one list."""

    async def scenario() -> None:
        stream = ListedStream(even_shards(2), "orders")
        several = _Several(("orders", stream))
        await several.tending.join()
        stream.listed = 0
        await several.tending.audit(1)
        assert stream.listed == 1

    run_in_virtual_time(scenario())
