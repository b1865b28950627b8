"""Fleets without records: the report says what happened."""

import pytest

from benchmarks.large_fleet import simulate_large_fleet
from leasehold.config.settings import Mode


@pytest.mark.parametrize("mode", [Mode.PEER, Mode.LEADER])
def test_a_fleet_recovers_from_the_death_of_a_tenth(mode: Mode) -> None:
    """Every shard is served, then served again in good time, and never by two at one time."""
    report = simulate_large_fleet(seed=1, workers=20, shards=100, minutes=5, mode=mode)
    assert report.all_served_ms is not None
    # The failover time is 30 seconds; leases that went to another of the dead must not wait for it twice.
    assert report.recovered_ms is not None
    assert report.recovered_ms <= 50_000
    assert (report.killed, report.unserved, report.doubled) == (2, 0, 0)
    assert report.spread[1] - report.spread[0] <= 1
    assert report.moves >= report.moves_least
    assert "every shard served after" in "\n".join(report.lines())
