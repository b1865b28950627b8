"""The findings that a fleet reports about itself, on virtual time."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import FleetSettings
from leasehold.core.coordinator.kcl_rows import COORDINATOR_KEY_ATTRIBUTE, METRICS_KEY_ATTRIBUTE
from leasehold.core.coordinator.worker_metrics import WorkerReport, create_report
from leasehold.core.events import Event, FindingBegan, FindingEnded, FindingsReviewed
from leasehold.core.finding import Finding
from leasehold.core.leases.lease_row import KEY
from leasehold.core.leases.row_writes import DeleteRow
from leasehold.core.model import ShardId, WorkerId
from leasehold.core.records.iterators import IteratorStart
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Page
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.fleet.world import (
    LEADER_SETTINGS,
    SETTINGS,
    ListedStream,
    World,
    even_shards,
    leaders,
)

# Others notice the silence of an owner after two minutes, so there is time to report it.
SLOW = timedelta(seconds=120)


def tellers(world: World) -> set[WorkerId]:
    """The members that reported any finding."""
    return {
        worker
        for worker, log in world.events.items()
        if any(isinstance(event, FindingBegan) for _, event in log)
    }


@pytest.mark.parametrize(
    "settings", [replace(SETTINGS, failover_after=SLOW), replace(LEADER_SETTINGS, failover_after=SLOW)]
)
def test_one_member_tells_that_an_owner_is_silent_and_when_that_is_over(settings: FleetSettings) -> None:
    """One line when it begins and one when it ends, however long it lasts, and no calls for it."""

    async def scenario() -> None:
        world = World(even_shards(4), settings=settings, has_watches=True)
        dying = world.start("c")
        world.start("a")
        world.start("b")
        await world.until(lambda: len(set(world.readers().values())) == 3, within_s=300)
        await world.clock.sleep_ms(60_000)
        assert world.events_of((FindingBegan, FindingsReviewed)) == []
        lost = [shard for shard, worker in world.readers().items() if worker == dying]
        await world.kill(dying)
        await world.until(lambda: len(world.events_of(FindingEnded)) >= len(lost), within_s=600)
        began = [event.finding for event in world.events_of(FindingBegan) if isinstance(event, FindingBegan)]
        assert {finding.code for finding in began if finding.shard} == {"owner_silent"}
        assert sorted(str(finding.shard) for finding in began if finding.shard) == sorted(lost)
        assert "its owner c is silent" in began[-1].text or began[-1].code != "owner_silent"
        assert len(tellers(world)) == 1
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_healthy_fleet_makes_hardly_any_call_for_its_findings() -> None:
    """The reviews use what members read anyway. The leader queries the index of owners every ten minutes."""

    async def calls(*, has_watches: bool) -> Counter[tuple[str, str]]:
        world = World(even_shards(4), settings=LEADER_SETTINGS, has_watches=has_watches)
        world.start("a")
        world.start("b")
        await world.clock.sleep_ms(300_000)
        assert world.events_of(FindingBegan) == []
        made = Counter({**world.calls, ("stream", "list"): world.stream.listed})
        (leader,) = leaders(world)
        await world.stop_all()
        return made if not has_watches else made - Counter({(leader, "keys_owned_by"): 1})

    async def scenario() -> None:
        assert await calls(has_watches=True) == await calls(has_watches=False)

    run_in_virtual_time(scenario())


def told(world: World, code: str) -> list[Finding]:
    """The findings with this code that have begun."""
    began = [event.finding for event in world.events_of(FindingBegan) if isinstance(event, FindingBegan)]
    return [finding for finding in began if finding.code == code]


def ended(world: World, code: str) -> int:
    """How many findings with this code have ended."""
    return sum(isinstance(event, FindingEnded) and event.finding.code == code for event in all_events(world))


def all_events(world: World) -> list[Event]:
    return [event for log in world.events.values() for _, event in log]


@pytest.mark.parametrize("settings", [SETTINGS, LEADER_SETTINGS])
def test_one_member_tells_that_a_shard_has_no_lease_until_an_audit_creates_it(
    settings: FleetSettings,
) -> None:
    """It is known from the lists of shards that audits make."""

    async def scenario() -> None:
        world = World(even_shards(3), settings=settings, has_watches=True)
        for name in ("a", "b", "c"):
            world.start(name)
        await world.until(lambda: len(set(world.readers().values())) == 3, within_s=300)
        listing = await world.table.list()
        await world.rows.write(DeleteRow(key=listing.leases[0].key, when=()))
        await world.until(lambda: bool(told(world, "no_lease")), within_s=400)
        assert [finding.shard for finding in told(world, "no_lease")] == [listing.leases[0].key]
        assert len(tellers(world)) == 1
        await world.until(lambda: ended(world, "no_lease") == 1, within_s=1_200)
        assert len((await world.table.list()).leases) == 3
        await world.stop_all()

    run_in_virtual_time(scenario())


class RowsWithoutIndex(MemoryRows):
    """A table whose index of owners is being built."""

    has_index = False

    async def keys_owned_by(self, owner: str) -> Sequence[str] | None:
        return await super().keys_owned_by(owner) if self.has_index else None


def test_the_leader_tells_that_the_index_is_not_ready_and_that_there_are_two_layouts() -> None:
    """The index is asked for once a minute until it is ready. The layouts are in rows that members read anyway."""

    async def scenario() -> None:
        world = World(even_shards(2), settings=LEADER_SETTINGS, has_watches=True)
        world.rows = rows = RowsWithoutIndex()
        world.table = LeaseTable(rows)
        world.coordinator = MemoryRows(key_attribute=COORDINATOR_KEY_ATTRIBUTE)
        world.metrics = MemoryRows(key_attribute=METRICS_KEY_ATTRIBUTE)
        await rows.write(create_report(WorkerReport(worker=WorkerId("java-1"), updated_s=1), KEY))
        world.start("a")
        codes = ("index_not_ready", "two_table_layouts")
        await world.until(lambda: all(len(told(world, code)) == 1 for code in codes), within_s=400)
        rows.has_index = True
        await world.until(lambda: ended(world, "index_not_ready") == 1, within_s=200)
        await world.stop_all()

    run_in_virtual_time(scenario())


class TrimmedStream(ListedStream):
    """A stream whose shards have ended, and have no records any more."""

    reads = 0

    async def get_iterator(self, shard: ShardId, start: IteratorStart) -> str:
        return f"{shard} {start}"

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        self.reads += 1
        return Page((), None, 0)


async def serve_slowly(world: World, _worker: WorkerId, held: HeldLease) -> None:
    """Tasks read the records. The member only holds the lease."""
    while not held.draining.is_set():
        held.note_progress()
        await world.clock.sleep_ms(5_000)


def test_shards_of_which_no_event_shows_how_far_they_are_are_read_every_ten_minutes() -> None:
    """As with a Spark driver: tasks read the records."""

    async def scenario() -> None:
        world = World(even_shards(4), serve=serve_slowly, settings=LEADER_SETTINGS, has_watches=True)
        world.stream = stream = TrimmedStream(world.shards)
        world.start("a")
        await world.until(lambda: len(told(world, "position_trimmed")) == 4, within_s=1_000)
        assert stream.reads == 4
        await world.clock.sleep_ms(600_000)
        assert stream.reads == 8
        await world.stop_all()

    run_in_virtual_time(scenario())
