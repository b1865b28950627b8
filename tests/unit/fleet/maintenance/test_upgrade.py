"""Members in a fleet that upgrades from KCL 2.x: it gets its leader, whoever has to decide it, and can go back."""

from asyncio import create_task
from dataclasses import replace

import pytest

from leasehold.adapters.memory.faults import StoreFault
from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import Mode
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
    """What the migration row says."""
    row = await rows.get("Migration3.0")
    assert row is not None
    return str(row["cv"]["S"]).removeprefix("CLIENT_VERSION_")


async def upgrading(*, own_tables: bool = False) -> tuple[World, MemoryRows]:
    """Two members in a fleet that Java has begun to upgrade, and the table that says so."""
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
def test_a_fleet_gets_its_leader_though_one_of_ours_decides(own_tables: bool) -> None:
    """Ten minutes after all are well and report, the row says so; a minute later one leads; nobody lost a lease."""

    async def scenario() -> None:
        world, rows = await upgrading(own_tables=own_tables)
        await world.until(lambda: world.shares() == [3, 3], within_s=60)
        await world.clock.sleep_ms((READY_S - 60) * 1000)
        assert await version(rows) == "UPGRADE_FROM_2X"
        assert not world.told(LeadershipTaken)
        await world.clock.sleep_ms((60 + 3 * CHECKS_S) * 1000)
        assert await version(rows) == "3X_WITH_ROLLBACK"
        assert len(world.told(LeadershipTaken)) == 1
        assert len(world.told(FleetUpgraded)) == 1
        assert not world.told(OperationFailed)
        assert not world.told(LeaseLost)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_worker_that_does_not_report_holds_the_upgrade_up() -> None:
    """An owner without a report may be a KCL 2.x, which a leader would break."""

    async def scenario() -> None:
        world, rows = await upgrading()
        world.settings = replace(SETTINGS, mode=Mode.PEER)
        world.start("without a report")
        await world.until(lambda: world.shares() == [2, 2, 2], within_s=60)
        await world.clock.sleep_ms(3 * READY_S * 1000)
        assert await version(rows) == "UPGRADE_FROM_2X"
        await world.stop_all()

    run_in_virtual_time(scenario())


class _CalledOff(MemoryRows):
    """A coordinator's table in which an operator calls the upgrade off at the last moment."""

    async def write(self, write: RowWrite) -> Applied | Refused:
        if isinstance(write, UpdateRow) and write.set.get("cv") == {"S": "CLIENT_VERSION_3X_WITH_ROLLBACK"}:
            off: Row = {"cv": {"S": "CLIENT_VERSION_2X"}}
            proof = (Equals("cv", off["cv"]),)
            await super().write(UpdateRow(key=write.key, when=write.when, set=off, proof=proof))
        return await super().write(write)


def test_an_upgrade_that_is_called_off_at_the_last_moment_is_told() -> None:
    """The write is refused, nobody is said to have upgraded the fleet, and the operator learns why."""

    async def scenario() -> None:
        world = World(even_shards(2), settings=replace(SETTINGS, mode=Mode.AUTO))
        world.coordinator = rows = _CalledOff([{"key": {"S": "Migration3.0"}, **SAYS}], key_attribute="key")
        world.metrics = MemoryRows(key_attribute="wid")
        world.start("a")
        await world.clock.sleep_ms((READY_S + 4 * CHECKS_S) * 1000)
        assert await version(rows) == "2X"
        assert not world.told(FleetUpgraded)
        (told,) = world.told(OperationFailed)
        assert isinstance(told, OperationFailed)
        assert "another has changed" in told.error
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_fleet_goes_back_when_it_is_told_to() -> None:
    """An operator's rollback after the change-over: everybody is a peer again, without a lock, and reads on."""

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
        assert not world.told(LeaseLost)
        await world.stop_all()

    run_in_virtual_time(scenario())


class _RolledBackMeanwhile(World):
    """The operator rolls back while a member named "late" starts: after it has concluded how to take part."""

    def _trouble_for(self, worker: WorkerId, call: str, key: str) -> StoreFault | None:
        if (worker, call, self.calls[worker, call]) == ("late", "scan", 1):
            self.rolling_back = create_task(self.rows.write(self._rollback()))
        return super()._trouble_for(worker, call, key)

    @staticmethod
    def _rollback() -> UpdateRow:
        back: Row = {"cv": {"S": "CLIENT_VERSION_2X"}}
        now = (Equals("cv", {"S": "CLIENT_VERSION_3X"}),)
        return UpdateRow(key="Migration3.0", when=now, set=back, proof=(Equals("cv", back["cv"]),))


def test_a_rollback_while_a_member_starts_is_followed() -> None:
    """Its looks alone would never show that anything has changed."""

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


def test_a_leader_goes_on_leading_when_java_joins() -> None:
    """A Java member of KCL 3.5 writes which generation the fleet is of; that is no change of mode."""

    async def scenario() -> None:
        world = World(even_shards(6), settings=replace(SETTINGS, mode=Mode.AUTO))
        world.start("a")
        await world.until(lambda: len(world.readers()) == 6, within_s=20)
        row: Row = {"leaseKey": {"S": "Migration3.0"}, "entityType": {"S": "CLIENT_VERSION_MIGRATION"}}
        await world.rows.write(PutRow("Migration3.0", {**row, "cv": {"S": "CLIENT_VERSION_3X"}}))
        await world.clock.sleep_ms(10 * CHECKS_S * 1000)
        assert len(world.told(LeadershipTaken)) == 1
        assert not world.told((LeadershipEnded, LeaseLost))
        checks = world.calls["a", "get"]
        await world.clock.sleep_ms(4 * CHECKS_S * 1000)
        assert world.calls["a", "get"] <= checks + 1
        await world.stop_all()

    run_in_virtual_time(scenario())
