"""A fleet in three tables, which only a Java leader can move to one: our leader resigns for Java, and leads again
if Java does not.
"""

import asyncio
import random
from dataclasses import dataclass, field

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.core.coordinator import leader_lock
from leasehold.core.coordinator.fleet_mode import TableLayout
from leasehold.core.coordinator.kcl_rows import COORDINATOR_KEY_ATTRIBUTE
from leasehold.core.coordinator.table_move import JAVA_FIRST_MS
from leasehold.core.coordinator.worker_metrics import ReportListing, WorkerReport
from leasehold.core.events import Event, LeadershipEnded
from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.model import Lease, ShardId, WorkerId, lease_key
from leasehold.core.position import TRIM_HORIZON
from leasehold.fleet.assignment.leader_election import LeaderElection
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.coordinator_rows import CoordinatorRows, FleetSnapshot
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from tests.unit.fleet.world import SETTINGS

SHARD = ShardId("shardId-0")
JAVA = WorkerId("java")
JAVA_LOCK_S = 60


@dataclass
class Standby:
    """One member of ours and one of Java (KCL 3.5), in three tables."""

    place: TableLayout = TableLayout.SEPARATE_TABLES
    clock: VirtualClock = field(default_factory=VirtualClock)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        own = MemoryRows(key_attribute="key"), MemoryRows(key_attribute="wid")
        self.coordinator_rows = CoordinatorRows(MemoryRows(), coordinator=own[0], metrics=own[1])
        operations = Operations(self.clock, random.Random(7), self.events.append)
        self.election = LeaderElection(
            self.coordinator_rows, self.place, WorkerId("ours"), SETTINGS, operations
        )

    async def refresh_for(self, seconds: int) -> None:
        """Refresh once a second, for so long."""
        for _ in range(seconds):
            lock = await self.coordinator_rows.read_lock(self.place)
            self.election.note_fleet(self._seen())
            await self.election.note_lock(lock)
            self.election.note_decision()
            await self.clock.sleep_ms(1_000)

    def _seen(self) -> FleetSnapshot:
        shard = Lease(key=lease_key(SHARD), shard_id=SHARD, checkpoint=TRIM_HORIZON, owner=JAVA)
        told = WorkerReport(worker=JAVA, updated_s=self.clock.wall_ms() // 1000, support=1)
        return FleetSnapshot(LeaseListing((shard,), ()), ReportListing((told,)), None, 1)

    def leads(self) -> bool:
        """Whether it surely does at this moment."""
        return self.election.is_leading

    def times_it_gave_way(self) -> int:
        """How many times it let Java lead."""
        return sum(isinstance(event, LeadershipEnded) for event in self.events)


def test_a_leader_resigns_for_java_once() -> None:
    """It leads, resigns when it sees the Java member, waits for Java, and leads again if Java does not."""

    async def scenario() -> None:
        standby = Standby()
        beats = asyncio.create_task(standby.election.run())
        await standby.refresh_for(5)
        assert standby.leads()
        await standby.refresh_for(40)
        assert not standby.leads()
        assert standby.times_it_gave_way() == 1
        await standby.refresh_for(60)
        assert standby.leads()
        await standby.refresh_for(300)
        assert standby.times_it_gave_way() == 1
        beats.cancel()
        await asyncio.gather(beats, return_exceptions=True)

    run_in_virtual_time(scenario())


def test_a_standby_leaves_a_free_lock_to_java() -> None:
    """A standby leaves a free lock alone for 45 seconds, so that a Java member can take it."""

    async def scenario() -> None:
        standby = Standby()
        lock = leader_lock.acquire(None, JAVA, "v", JAVA_LOCK_S * 1000, COORDINATOR_KEY_ATTRIBUTE)
        await standby.coordinator_rows.write_lock(standby.place, lock)
        await standby.refresh_for(JAVA_LOCK_S + JAVA_FIRST_MS // 1000 - 5)
        assert not standby.leads()
        await standby.refresh_for(10)
        assert standby.leads()

    run_in_virtual_time(scenario())
