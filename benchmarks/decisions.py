"""How fast are the parts without records: an assignment, the lease table, the simulator?

python -m benchmarks decisions
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from benchmarks.assignment import decision_ms
from benchmarks.harness import Plan, Result
from benchmarks.large_fleet import simulate_large_fleet
from leasehold.adapters.memory.rows import MemoryRows
from leasehold.adapters.sqlite_rows import SqliteRows
from leasehold.config.settings import Mode
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId
from leasehold.core.position import TRIM_HORIZON
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import RowStore

LEASES = 200
COMPARISONS = ("assignment", "lease-table", "simulator")


async def renewals_us(rows: RowStore) -> float:
    """The CPU time of one heartbeat, in microseconds."""
    table = LeaseTable(rows)
    await table.prepare()
    leases = [
        Lease(
            key=LeaseKey(f"l{number}"),
            shard_id=ShardId(f"l{number}"),
            checkpoint=TRIM_HORIZON,
        )
        for number in range(LEASES)
    ]
    held = []
    for lease in leases:
        await table.create(lease)
        taken = await table.take(lease, WorkerId("w"), LeaseSessionId("session"))
        assert isinstance(taken, Lease)
        held.append(taken)
    before = time.process_time()
    for lease in held:
        await table.renew(lease)
    return 1e6 * (time.process_time() - before) / LEASES


def simulated_minutes_per_s() -> float:
    """Simulated minutes of a fleet of 20 members and 200 shards in one second."""
    before = time.process_time()
    simulate_large_fleet(seed=1, workers=20, shards=200, minutes=3, mode=Mode.LEADER)
    return 3 / (time.process_time() - before)


def run(plan: Plan) -> Iterator[Result]:
    """One result for each part."""
    command = "make bench ARGS=decisions"
    assignment = Result(
        "assignment",
        "How long does a leader's decision take?",
        "ms for 10,000 leases and 1,000 workers",
        command,
        "one pass over all leases",
    )
    table = Result(
        "lease-table", "What does a heartbeat cost?", "CPU us a heartbeat", command, "encoding of the row"
    )
    simulator = Result(
        "simulator",
        "How fast is the simulator?",
        "simulated minutes a CPU second, 20 members and 200 shards",
        command,
        "the event loop on virtual time",
    )
    for _ in range(plan.repeats):
        assignment.add("leasehold", decision_ms())
        for name, measure in _stores().items():
            table.add(name, asyncio.run(measure()))
        simulator.add("leasehold", simulated_minutes_per_s())
    yield from (assignment, table, simulator)


def _stores() -> dict[str, Callable[[], Awaitable[float]]]:
    async def in_sqlite() -> float:
        with tempfile.TemporaryDirectory() as folder:
            return await renewals_us(SqliteRows(Path(folder) / "leases.sqlite"))

    return {"memory": lambda: renewals_us(MemoryRows()), "SQLite": in_sqlite}
