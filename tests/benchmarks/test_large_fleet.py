"""The simulated fleet without records: its report."""

import pytest

from benchmarks.large_fleet import simulate_large_fleet
from leasehold.config.settings import Mode


@pytest.mark.parametrize("mode", [Mode.PEER, Mode.LEADER])
def test_a_fleet_recovers_when_a_tenth_is_killed(mode: Mode) -> None:
    """Every shard has an owner, gets a new owner in time, and never has two."""
    report = simulate_large_fleet(seed=1, workers=20, shards=100, minutes=5, mode=mode)
    assert report.all_owned_ms is not None
    # The failover time is 30 seconds. A lease that was assigned to another dead member must not wait for it twice.
    assert report.recovered_ms is not None
    assert report.recovered_ms <= 50_000
    assert (report.killed, report.unowned, report.owned_twice) == (2, 0, 0)
    assert report.spread[1] - report.spread[0] <= 1
    assert report.moves >= report.moves_min
    assert "every shard owned after" in "\n".join(report.lines())
