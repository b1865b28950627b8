"""One of several processes that race for a lease. Run as a module: place, operation, worker, steps.

Says "ready" and waits for a line, so that all begin together. Prints, as JSON, the steps that this process won and
lost. What makes a step is the lease's counter (for `take`) or the start of
the batch (for `pin`): whoever wins step n makes step n+1 possible, so the racers keep meeting at the same step.
"""

import asyncio
import json
import sys
import uuid
from dataclasses import asdict

from leasehold.core.model import HoldingId, Lease, LeaseKey, WorkerId
from leasehold.core.position import Position
from leasehold.fleet.lease_table import LeaseTable
from tests.contract.lease_stores import Place

KEY = LeaseKey("shardId-000000000001")


async def race(place: Place, operation: str, worker: str, steps: int) -> dict[str, list[object]]:
    """Try every step until the last is won by someone."""
    table = LeaseTable(place.open())
    await table.get(KEY)  # connected, with everything imported
    print("ready", flush=True)
    sys.stdin.readline()
    won: list[object] = []
    lost: list[object] = []
    while True:
        lease = await table.get(KEY)
        assert lease is not None
        if (lease.counter if operation == "take" else _start(lease)) >= steps:
            break
        if operation == "take":
            step: object = lease.counter
            outcome = await table.take(lease, WorkerId(worker), HoldingId(uuid.uuid4().hex))
        else:
            # Each racer cuts the batch differently, as two attempts of a task would.
            step = [_start(lease), _start(lease) + 1 + sum(worker.encode()) % 7]
            outcome = await table.pin(lease, Position(str(step[1])))
        (won if isinstance(outcome, Lease) else lost).append(step)
    await table.close()
    return {"won": won, "lost": lost}


def _start(lease: Lease) -> int:
    place = lease.pin.end if lease.pin else lease.checkpoint
    return place.number if place.is_record else 0


if __name__ == "__main__":
    _, where, operation, worker, steps = sys.argv
    print(json.dumps(asyncio.run(race(Place(**json.loads(where)), operation, worker, int(steps)))))


def command(place: Place, operation: str, worker: str, steps: int) -> list[str]:
    """How to start a racer."""
    return [sys.executable, "-m", __name__, json.dumps(asdict(place)), operation, worker, str(steps)]
