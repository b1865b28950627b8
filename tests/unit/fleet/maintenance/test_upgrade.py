"""Members in a fleet that upgrades from KCL 2.x: it gets a leader, whichever member decides, and can be rolled back."""

from asyncio import create_task
from dataclasses import replace

import pytest

from leasehold.adapters.memory.faults import StoreFault
from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import Mode
from leasehold.core.coordinator.worker_metrics import cpu_report, create_report
from leasehold.core.events import FleetUpgraded, LeadershipEnded, LeadershipTaken, LeaseLost, OperationFailed
from leasehold.core.leases.row_writes import Equals, PutRow, Row, RowWrite, UpdateRow
from leasehold.core.model import WorkerId
from leasehold.ports import Applied, Refused
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.fleet.world import SETTINGS, World, even_shards

SAYS: Row = {
    "cv": {"S": "CLIENT_VERSION_UPGRADE_FROM_2X"},
    "mb": {"S": "java-1"},
    "mts": {"N": "1790000000123"},
}
CHECKS_S = 60
READY_S = 600


async def version(rows: MemoryRows) -> str:
    """The client version in the migration row."""
    row = await rows.get("Migration3.0")
    assert row is not None
    return str(row["cv"]["S"]).removeprefix("CLIENT_VERSION_")


async def upgrading(*, own_tables: bool = False) -> tuple[World, MemoryRows]:
    """Two members in a fleet whose upgrade Java has started, and the table with the migration row."""
    world = World(even_shards(6), settings=replace(SETTINGS, mode=Mode.AUTO))
    if own_tables:
        world.coordinator = MemoryRows([{"key": {"S": "Migration3.0"}, **SAYS}], key_attribute="key")
        world.metrics = MemoryRows(key_attribute="wid")
    else:
        kind = {"entityType": {"S": "CLIENT_VERSION_MIGRATION"}}
        await world.rows.write(PutRow("Migration3.0", {"leaseKey": {"S": "Migration3.0"}, **kind, **SAYS}))
    world.start("a")
    world.start("b")
    return world, world.coordinator or world.rows


@pytest.mark.parametrize("own_tables", [False, True], ids=["one table", "three tables"])
def test_an_upgrade_that_our_member_decides_gives_the_fleet_a_leader(own_tables: bool) -> None:
    """Ten minutes after all members report, the row changes. A minute later one member leads, and no member lost a
    lease.
    """

    async def scenario() -> None:
        world, rows = await upgrading(own_tables=own_tables)
        await world.until(lambda: world.shares() == [3, 3], within_s=60)
        await world.clock.sleep_ms((READY_S - 60) * 1000)
        assert await version(rows) == "UPGRADE_FROM_2X"
        assert not world.events_of(LeadershipTaken)
        await world.clock.sleep_ms((60 + 3 * CHECKS_S) * 1000)
        assert await version(rows) == "3X_WITH_ROLLBACK"
        assert len(world.events_of(LeadershipTaken)) == 1
        assert len(world.events_of(FleetUpgraded)) == 1
        assert not world.events_of(OperationFailed)
        assert not world.events_of(LeaseLost)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_worker_without_a_report_blocks_the_upgrade() -> None:
    """An owner without a report may run KCL 2.x, which cannot work with a leader."""

    async def scenario() -> None:
        world, rows = await upgrading()
        world.settings = replace(SETTINGS, mode=Mode.PEER)
        world.start("0 without a report")  # not the member that decides
        await world.until(lambda: world.shares() == [2, 2, 2], within_s=60)
        await world.clock.sleep_ms(3 * READY_S * 1000)
        assert await version(rows) == "UPGRADE_FROM_2X"
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_worker_with_an_expired_report_blocks_the_upgrade() -> None:
    """It reported once, and then a KCL 2.x took its name, or it reports no more."""

    async def scenario() -> None:
        world, rows = await upgrading()
        world.settings = replace(SETTINGS, mode=Mode.PEER)
        worker = world.start("0")  # not the member that decides
        report = cpu_report(worker, None, world.clock.wall_ms() // 1000)
        await world.rows.write(create_report(report, "leaseKey"))
        await world.until(lambda: world.shares() == [2, 2, 2], within_s=60)
        await world.clock.sleep_ms(3 * READY_S * 1000)
        assert await version(rows) == "UPGRADE_FROM_2X"
        await world.stop_all()

    run_in_virtual_time(scenario())


class _CalledOff(MemoryRows):
    """A coordinator table in which an operator cancels the upgrade at the last moment."""

    async def write(self, write: RowWrite) -> Applied | Refused:
        if isinstance(write, UpdateRow) and write.set.get("cv") == {"S": "CLIENT_VERSION_3X_WITH_ROLLBACK"}:
            off: Row = {"cv": {"S": "CLIENT_VERSION_2X"}}
            proof = (Equals("cv", off["cv"]),)
            await super().write(UpdateRow(key=write.key, when=write.when, set=off, proof=proof))
        return await super().write(write)


def test_an_upgrade_cancelled_at_the_last_moment_is_reported() -> None:
    """The write is refused, no upgrade is reported, and the operator gets the reason."""

    async def scenario() -> None:
        world = World(even_shards(2), settings=replace(SETTINGS, mode=Mode.AUTO))
        world.coordinator = rows = _CalledOff([{"key": {"S": "Migration3.0"}, **SAYS}], key_attribute="key")
        world.metrics = MemoryRows(key_attribute="wid")
        world.start("a")
        await world.clock.sleep_ms((READY_S + 4 * CHECKS_S) * 1000)
        assert await version(rows) == "2X"
        assert not world.events_of(FleetUpgraded)
        (failure,) = world.events_of(OperationFailed)
        assert isinstance(failure, OperationFailed)
        assert "another process has changed" in failure.error
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_fleet_follows_a_rollback() -> None:
    """After a rollback by the operator every member is a peer again, without a lock, and reads on."""

    async def scenario() -> None:
        world, rows = await upgrading()
        await world.clock.sleep_ms((READY_S + 4 * CHECKS_S) * 1000)
        now, back = {"S": "CLIENT_VERSION_3X_WITH_ROLLBACK"}, {"cv": {"S": "CLIENT_VERSION_2X"}}
        proof = (Equals("cv", back["cv"]),)
        await rows.write(UpdateRow(key="Migration3.0", when=(Equals("cv", now),), set=back, proof=proof))
        await world.clock.sleep_ms(2 * CHECKS_S * 1000)
        kinds = {row.get("entityType", {}).get("S") for row in await rows.scan()}
        assert kinds == {"LEASE", "CLIENT_VERSION_MIGRATION"}
        assert world.shares() == [3, 3]
        assert not world.events_of(LeaseLost)
        await world.stop_all()

    run_in_virtual_time(scenario())


class _RolledBackMeanwhile(World):
    """The operator rolls back while a member named "late" starts, after that member has determined its mode."""

    def _fault_for(self, worker: WorkerId, call: str, key: str) -> StoreFault | None:
        if (worker, call, self.calls[worker, call]) == ("late", "scan", 1):
            self.rolling_back = create_task(self.rows.write(self._rollback()))
        return super()._fault_for(worker, call, key)

    @staticmethod
    def _rollback() -> UpdateRow:
        back: Row = {"cv": {"S": "CLIENT_VERSION_2X"}}
        now = (Equals("cv", {"S": "CLIENT_VERSION_3X"}),)
        return UpdateRow(key="Migration3.0", when=now, set=back, proof=(Equals("cv", back["cv"]),))


def test_a_rollback_while_a_member_starts_is_followed() -> None:
    """The member's own refreshes do not show the change."""

    async def scenario() -> None:
        world = _RolledBackMeanwhile(even_shards(6), settings=replace(SETTINGS, mode=Mode.AUTO))
        row: Row = {"leaseKey": {"S": "Migration3.0"}, "entityType": {"S": "CLIENT_VERSION_MIGRATION"}}
        await world.rows.write(PutRow("Migration3.0", {**row, "cv": {"S": "CLIENT_VERSION_3X"}}))
        world.start("late")
        await world.clock.sleep_ms(3 * CHECKS_S * 1000)
        assert await version(world.rows) == "2X"
        kinds = {row.get("entityType", {}).get("S") for row in await world.rows.scan()}
        assert kinds == {"LEASE", "CLIENT_VERSION_MIGRATION"}
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_leader_continues_when_java_joins() -> None:
    """A Java member of KCL 3.5 writes the version of the fleet, which is not a change of mode."""

    async def scenario() -> None:
        world = World(even_shards(6), settings=replace(SETTINGS, mode=Mode.AUTO))
        world.start("a")
        await world.until(lambda: len(world.readers()) == 6, within_s=20)
        row: Row = {"leaseKey": {"S": "Migration3.0"}, "entityType": {"S": "CLIENT_VERSION_MIGRATION"}}
        await world.rows.write(PutRow("Migration3.0", {**row, "cv": {"S": "CLIENT_VERSION_3X"}}))
        await world.clock.sleep_ms(10 * CHECKS_S * 1000)
        assert len(world.events_of(LeadershipTaken)) == 1
        assert not world.events_of((LeadershipEnded, LeaseLost))
        checks = world.calls["a", "get"]
        await world.clock.sleep_ms(4 * CHECKS_S * 1000)
        assert world.calls["a", "get"] <= checks + 1
        await world.stop_all()

    run_in_virtual_time(scenario())
