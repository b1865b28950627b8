"""The simulator knows which process owns a lease, also of rows that cannot be read for a while."""

from leasehold.core.leases.lease_row import OWNER_SWITCHES
from leasehold.core.leases.lease_rules import create, take
from leasehold.core.leases.row_writes import Row, next_row, text
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId
from leasehold.core.position import TRIM_HORIZON
from leasehold.simulation.environment.ownership import Ownerships, lease_change
from leasehold.simulation.environment.process import SimulatedLoop, SimulatedProcess
from leasehold.simulation.environment.table import RowChange

LEASE = Lease(key=LeaseKey("s-0"), shard_id=ShardId("s-0"), checkpoint=TRIM_HORIZON)
SESSION = LeaseSessionId("session")


def _damaged(row: Row) -> Row:
    return {**row, OWNER_SWITCHES: text("no number")}


def test_a_lease_that_is_taken_while_its_row_is_damaged_is_owned_from_its_repair_on() -> None:
    """The response to the write was lost, and the row was read again after its repair."""
    loop = SimulatedLoop()
    process = SimulatedProcess("p", WorkerId("w"), loop)
    loop.close()
    free = next_row(create(LEASE), None)
    assert free is not None
    taken = next_row(take(LEASE, WorkerId("w"), SESSION), free)
    assert taken is not None
    ownerships = Ownerships()
    for at_ms, before, after, by in (
        (1, free, _damaged(free), None),
        (2, _damaged(free), _damaged(taken), process),
        (3, _damaged(taken), taken, None),
    ):
        assert ownerships.find_latest(process, LEASE.key) is None
        ownerships.apply(lease_change(RowChange(at_ms, LEASE.key, before, after, by, None)), next_index=0)
    current = ownerships.current[LEASE.key]
    assert (current.process, current.session, current.began_ms) == (process, SESSION, 2)
    assert ownerships.find_by_token("s-0:1", process) is current
    assert ownerships.find_latest(process, LEASE.key) is current
