"""A member does not take leases against a leader whose rows it does not find."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import Mode
from leasehold.core.coordinator.fleet_mode import FleetMode, TableLayout
from leasehold.core.events import LeaseTaken
from leasehold.core.leases.row_writes import Equals, PutRow, Row, UpdateRow, number, text
from leasehold.errors import ConfigError, NotFoundError
from leasehold.fleet.table.coordinator_rows import CoordinatorRows
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.fleet.world import SETTINGS, World, even_shards

AUTO = replace(SETTINGS, mode=Mode.AUTO)
JAVA_HEARTBEAT_MS = 3_300
KEY = "shardId-000000000000"


class RowsWithoutIndex(MemoryRows):
    """A table of KCL 2.x, which has no index of owners."""

    async def keys_owned_by(self, owner: str) -> Sequence[str] | None:
        """There is no index."""
        return None


class MissingRows(MemoryRows):
    """A table that does not exist."""

    async def scan(self, *, segments: int = 1, is_consistent: bool = False) -> Sequence[Row]:
        """Fails."""
        raise NotFoundError("table billing-WorkerMetricStats, scan: it does not exist")


def java_row(counter: int) -> Row:
    """A lease that a member of another KCL owns."""
    return {
        "leaseKey": text(KEY),
        "leaseOwner": text("java-1"),
        "leaseCounter": number(counter),
        "ownerSwitchesSinceCheckpoint": number(0),
        "checkpoint": text("TRIM_HORIZON"),
        "checkpointSubSequenceNumber": number(0),
        "throughputKBps": {"N": "12.345678"},
    }


async def renew_as_java(world: World) -> None:
    """Renew the lease as a Java member does, until another member takes it."""
    for counter in range(41, 1_000):
        if counter == 41:
            await world.rows.write(PutRow(KEY, java_row(counter)))
        else:
            seen = Equals("leaseCounter", number(counter - 1))
            renewed = Equals("leaseCounter", number(counter))
            await world.rows.write(
                UpdateRow(key=KEY, when=(seen,), set={"leaseCounter": renewed.value}, proof=(renewed,))
            )
        await world.clock.sleep_ms(JAVA_HEARTBEAT_MS)


def test_a_member_refuses_a_fleet_whose_leader_it_does_not_find() -> None:
    """A Java member renews, the table has the index of owners, and the coordinator table has another name."""

    async def scenario() -> None:
        world = World(even_shards(1), settings=AUTO)
        java = asyncio.create_task(renew_as_java(world))
        await world.clock.sleep_ms(1_000)
        member = world.start("a")
        await world.clock.sleep_ms(30_000)
        with pytest.raises(
            ConfigError, match=r"'java-1' renews leases.*set coordinator_table and worker_metr"
        ):
            await world.stop(member)
        assert world.events_of(LeaseTaken) == []
        java.cancel()

    run_in_virtual_time(scenario())


def test_a_repaired_counter_is_no_heartbeat() -> None:
    """A dead member owns a lease whose damaged counter an operator repairs while a new member looks for the leader."""

    async def scenario() -> None:
        world = World(even_shards(1), settings=AUTO)
        await world.rows.write(PutRow(KEY, {**java_row(41), "leaseCounter": text("none")}))
        world.start("a")
        await world.clock.sleep_ms(2_500)
        repaired = Equals("leaseCounter", number(41))
        await world.rows.write(
            UpdateRow(
                key=KEY,
                when=(Equals("leaseCounter", text("none")),),
                set={"leaseCounter": repaired.value},
                proof=(repaired,),
            )
        )
        await world.until(lambda: bool(world.events_of(LeaseTaken)), within_s=60)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_the_named_coordinator_table_explains_the_owners() -> None:
    """With the right names the member follows the leader."""

    async def scenario() -> None:
        world = World(even_shards(1), settings=AUTO)
        lock: Row = {
            "key": text("Leader"),
            "ownerName": text("java-1"),
            "leaseDuration": text("120000"),
            "recordVersionNumber": text("1"),
        }
        world.coordinator = MemoryRows([lock], key_attribute="key")
        world.metrics = MemoryRows(key_attribute="wid")
        java = asyncio.create_task(renew_as_java(world))
        await world.clock.sleep_ms(1_000)
        member = world.start("a")
        await world.clock.sleep_ms(30_000)
        assert world.events_of(LeaseTaken) == []
        await world.stop(member)
        java.cancel()

    run_in_virtual_time(scenario())


def test_members_of_kcl_2_are_joined_as_peers() -> None:
    """Their table has no index of owners, so a heartbeat without a session id is no trace of a leader."""

    async def scenario() -> None:
        world = World(even_shards(2), settings=AUTO)
        world.rows = RowsWithoutIndex()
        java = asyncio.create_task(renew_as_java(world))
        await world.clock.sleep_ms(1_000)
        world.start("a")
        java.cancel()  # it falls silent
        await world.until(lambda: bool(world.events_of(LeaseTaken)), within_s=60)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_dead_owners_without_a_session_id_do_not_keep_a_member_from_starting() -> None:
    """A fleet of ours whose last members were killed leaves such rows, too: nothing renews them."""

    async def scenario() -> None:
        world = World(even_shards(1), settings=AUTO)
        await world.rows.write(PutRow(KEY, java_row(41)))
        world.start("a")
        await world.until(lambda: len(world.readers()) == 1, within_s=60)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_with_mode_peer_the_user_has_decided() -> None:
    """A rollback to KCL 2.x may leave the index behind."""

    async def scenario() -> None:
        world = World(even_shards(1), settings=SETTINGS)
        java = asyncio.create_task(renew_as_java(world))
        await world.clock.sleep_ms(1_000)
        member = world.start("a")
        await world.clock.sleep_ms(30_000)
        await world.stop(member)
        java.cancel()

    run_in_virtual_time(scenario())


def test_a_missing_metrics_table_names_its_setting() -> None:
    """The coordinator table was found, but the reports have another name."""

    async def scenario() -> None:
        rows = CoordinatorRows(
            MemoryRows(), coordinator=MemoryRows(key_attribute="key"), metrics=MissingRows()
        )
        separate = TableLayout.SEPARATE_TABLES
        mode = FleetMode(has_leader=True, sends_reports=True, lock_layout=separate, reports_layout=separate)
        with pytest.raises(NotFoundError, match="set worker_metrics_table"):
            await rows.read_snapshot(mode)

    run_in_virtual_time(scenario())
