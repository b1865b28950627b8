"""Who gets a released lease."""

from dataclasses import replace

import pytest

from leasehold.core.coordinator.worker_metrics import WorkerReport
from leasehold.core.model import Lease, LeaseKey, ShardId, WorkerId
from leasehold.core.position import Position
from leasehold.core.steering.release_plan import FleetRead, NextOwners, is_still_to_release, next_owners

ANNA, BERT, CLEO = WorkerId("anna"), WorkerId("bert"), WorkerId("cleo")
RESET = WorkerId("leasehold-reset-host-1:17:0a1b2c3d")
NOW_S = 1_700_000_000


def lease(number: int, owner: WorkerId | None = ANNA) -> Lease:
    shard = ShardId(f"shardId-{number:012}")
    return Lease(key=LeaseKey(shard), shard_id=shard, checkpoint=Position("100"), owner=owner, counter=7)


def choice(*leases: Lease, silent: WorkerId | None = None, reports: dict[WorkerId, int]) -> NextOwners:
    """The choice for the first of these leases, in a fleet in which all but one worker renew their leases."""
    renewed = [each if each.owner == silent else replace(each, counter=8) for each in leases]
    told = [WorkerReport(worker=worker, updated_s=NOW_S - age_s) for worker, age_s in reports.items()]
    return next_owners(leases[:1], FleetRead(leases, told), FleetRead(renewed, told), wall_s=NOW_S)


def test_a_worker_that_renews_none_of_its_leases_gets_no_lease() -> None:
    """Its report is fresh, and it has fewer leases than the other one."""
    fleet = [lease(0), lease(1, BERT), lease(2, CLEO), lease(3, CLEO)]
    reports = {ANNA: 20, BERT: 20, CLEO: 20}
    assert choice(*fleet, reports=reports).choose(fleet[0].key) == BERT
    assert choice(*fleet, silent=BERT, reports=reports).choose(fleet[0].key) == CLEO
    assert choice(*fleet[:2], silent=BERT, reports=reports).choose(fleet[0].key) == CLEO
    assert choice(*fleet[:2], silent=BERT, reports={BERT: 20}).choose(fleet[0].key) is None


def test_a_worker_that_was_heard_is_preferred_to_one_with_a_report_only() -> None:
    """Cleo has no lease: her report of 50 s ago does not show whether she still runs. A new report does."""
    fleet = (lease(0), lease(1, BERT))
    reports = {BERT: 20, CLEO: 50}
    assert choice(*fleet, reports=reports).choose(fleet[0].key) == BERT
    renewed = [replace(each, counter=8) for each in fleet]
    before = [WorkerReport(worker=worker, updated_s=NOW_S - 50) for worker in (BERT, CLEO)]
    after = [WorkerReport(worker=worker, updated_s=NOW_S - 2) for worker in (BERT, CLEO)]
    read_twice = next_owners(
        fleet[:1], FleetRead(fleet, before), FleetRead(renewed, after), wall_s=NOW_S, drained=ANNA
    )
    assert read_twice.choose(fleet[0].key) == CLEO


def test_released_leases_are_spread_by_the_number_of_leases() -> None:
    """Cleo gets the first one and then has as many as Bert. So the next one is Bert's."""
    fleet = [lease(0), lease(1), lease(2, BERT), lease(3, BERT), lease(4, CLEO)]
    chosen = choice(*fleet, reports={ANNA: 20, BERT: 20, CLEO: 20})
    assert [chosen.choose(fleet[0].key) for _ in range(2)] == [CLEO, BERT]


@pytest.mark.parametrize(
    ("owner", "expected"), [(ANNA, True), (RESET, True), (CLEO, True), (BERT, False), (None, False)]
)
def test_a_command_is_never_the_next_owner(owner: WorkerId | None, expected: bool) -> None:
    """Anna owned the lease. Cleo stands for a name of the command itself."""
    assert is_still_to_release(lease(0, owner), ANNA, {CLEO}) is expected
