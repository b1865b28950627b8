"""One of several processes that race for a lease. Run as a module: place, operation, worker.

Obeys two words on its standard input: "read" looks at the lease and says so; "go" writes to what was seen, and prints
whether that won. All racers look before any of them writes, so every step is a race.
"""

import asyncio
import json
import sys
import uuid
from dataclasses import asdict

from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, WorkerId
from leasehold.core.position import Position
from leasehold.fleet.table.lease_table import Contended, LeaseTable
from tests.contract.lease_stores import TableLocation

KEY = LeaseKey("shardId-000000000001")


async def race(place: TableLocation, operation: str, worker: str) -> None:
    """Read and write when told to, until there is nothing more to be told."""
    table = LeaseTable(place.open())
    loop = asyncio.get_running_loop()
    seen: Lease | None = None
    while word := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if word == "read":
            seen = await table.get(KEY)
            print("seen", flush=True)
        else:
            assert seen is not None
            print(json.dumps(_told(await _write(table, operation, worker, seen))), flush=True)
    await table.close()


async def _write(table: LeaseTable, operation: str, worker: str, seen: Lease) -> Lease | Contended:
    if operation == "take":
        return await table.take(seen, WorkerId(worker), LeaseSessionId(uuid.uuid4().hex))
    # Each racer cuts the batch differently, as two attempts of a task would.
    start = seen.pin.end if seen.pin else seen.checkpoint
    return await table.pin(seen, Position(str((start.number if start.is_record else 0) + len(worker))))


def _told(outcome: Lease | Contended) -> dict[str, object]:
    """Whether this racer won, and the lease as it then is, for all of them to agree on."""
    lease = outcome.current if isinstance(outcome, Contended) else outcome
    assert lease is not None
    end = str(lease.pin.end) if lease.pin else None
    return {"won": isinstance(outcome, Lease), "counter": lease.counter, "holding": lease.session, "end": end}


if __name__ == "__main__":
    _, where, operation, worker = sys.argv
    asyncio.run(race(TableLocation(**json.loads(where)), operation, worker))


def command(place: TableLocation, operation: str, worker: str) -> list[str]:
    """How to start a racer."""
    return [sys.executable, "-m", __name__, json.dumps(asdict(place)), operation, worker]
