"""A member that gives up shards without a page waits before it takes leases, longer with every failure."""

from leasehold.fleet.read_health import BACKOFF_MAX_MS, ReadHealth
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time

COOLDOWN_MS = 5_000


def test_waits_double_up_to_the_limit() -> None:
    """After each wait the member may have one lease. A page ends the series."""

    async def scenario() -> None:
        clock = VirtualClock()
        health = ReadHealth(clock, COOLDOWN_MS)
        assert (health.may_take, health.leases_max(None)) == (True, None)
        for expected_ms in (10_000, 20_000, 40_000, 80_000, BACKOFF_MAX_MS, BACKOFF_MAX_MS):
            health.note_unread_shard()
            await clock.sleep_ms(expected_ms - 1)
            assert not health.may_take
            await clock.sleep_ms(1)
            assert (health.may_take, health.leases_max(None)) == (True, 1)
        health.note_progress()
        assert (health.may_take, health.leases_max(7)) == (True, 7)

    run_in_virtual_time(scenario())


def test_shards_that_are_given_up_together_are_one_failure() -> None:
    """The member had them all before it could know that it cannot read."""

    async def scenario() -> None:
        clock = VirtualClock()
        health = ReadHealth(clock, COOLDOWN_MS)
        for _ in range(8):
            health.note_unread_shard()
            await clock.sleep_ms(1_000)
        await clock.sleep_ms(2_000)
        assert health.may_take

    run_in_virtual_time(scenario())
