"""Without handoffs, as beside KCL 1.x, leases move by force, and every record is still handled."""

from leasehold.core.events import HandoffRequested, LeaseTaken
from tests.unit.worker.multi_stream_world import MODES, ORDERS, RETURNS, MultiStreamWorld, run_scenario


@MODES
def test_leases_are_taken_instead_of_requested(mode: str) -> None:
    """The second member gets its share, and no row ever names a member that waits for a lease."""

    async def scenario(world: MultiStreamWorld) -> None:
        first = world.start("first", mode=mode, handoff=False, balance_by="count")
        world.put(40)
        await world.until(world.all_handled)
        second = world.start("second", mode=mode, handoff=False, balance_by="count")
        for _ in range(200):
            world.put(8)
            await world.clock.sleep_ms(1_000)
            leases = (await world.table.list()).leases
            assert not any(lease.is_in_handoff for lease in leases)
            if len([lease for lease in leases if lease.owner == second]) == 2:
                break
        world.put(40)
        await world.until(world.all_handled)
        assert second in world.readers(ORDERS) | world.readers(RETURNS)
        events = [*world.events[first], *world.events[second]]
        assert not [event for event in events if isinstance(event, HandoffRequested)]
        assert [event for event in world.events[second] if isinstance(event, LeaseTaken)]

    run_scenario(scenario)
