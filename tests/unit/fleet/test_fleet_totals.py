"""The totals of a fleet are published by one member, so that sums over all members are right."""

from collections import Counter

import pytest

from leasehold.config.settings import FleetSettings, MetricsLevel
from leasehold.core.observing.metrics import MetricWindow
from leasehold.core.observing.series import MemberSeries
from leasehold.fleet.assignment import fleet_reader
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.fleet.world import LEADER_SETTINGS, SETTINGS, World, even_shards


def totals(world: World) -> tuple[Counter[str], Counter[str]]:
    """The sums over all members: of a window of CloudWatch after the last event, and of Prometheus."""
    windows: Counter[str] = Counter()
    series: Counter[str] = Counter()
    for worker, log in world.events.items():
        window, member = MetricWindow(MetricsLevel.SUMMARY, worker), MemberSeries()
        for at_ms, event in log:
            window.observe(event, at_ms)
            member.observe(event, at_ms)
        for each in window.close(world.clock.now_ms()):
            windows[each.name] += each.total if not each.dimensions else 0
        for family in member.families(world.clock.now_ms()):
            series[family.name] += int(sum(sample.value for sample in family.samples))
    return windows, series


@pytest.mark.parametrize("settings", [SETTINGS, LEADER_SETTINGS])
@pytest.mark.parametrize("small_table_rows", [200, 5])
def test_sums_are_totals(
    settings: FleetSettings, small_table_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a fleet with a table so large that only the leader scans it."""
    monkeypatch.setattr(fleet_reader, "SMALL_TABLE_ROWS", small_table_rows)

    async def scenario() -> None:
        world = World(even_shards(12), settings=settings)
        for name in "abc":
            world.start(name)
        await world.until(lambda: world.shares() == [4, 4, 4], within_s=300)
        await world.clock.sleep_ms(60_000)
        windows, series = totals(world)
        assert (windows["total_leases"], windows["worker_leases"], windows["unclaimed_leases"]) == (12, 12, 0)
        assert (series["leasehold_fleet_leases"], series["leasehold_leases_held"]) == (12, 12)
        assert series["leasehold_leader"] == (1 if settings is LEADER_SETTINGS else 0)
        await world.stop_all()

    run_in_virtual_time(scenario())
