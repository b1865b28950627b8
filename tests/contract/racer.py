"""One of several processes that race for a lease. Run as a module with the arguments location, operation, worker.

Accepts two commands on its standard input. "read" reads the lease and prints "seen". "go" writes based on that read,
and prints whether the write succeeded. All racers read before any of them writes, so every round is a race.
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


async def race(location: TableLocation, operation: str, worker: str) -> None:
    """Execute the commands on the standard input until it ends."""
    table = LeaseTable(location.open())
    loop = asyncio.get_running_loop()
    seen: Lease | None = None
    while command_line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if command_line == "read":
            seen = await table.get(KEY)
            print("seen", flush=True)
        else:
            assert seen is not None
            print(json.dumps(_result(await _write(table, operation, worker, seen))), flush=True)
    await table.close()


async def _write(table: LeaseTable, operation: str, worker: str, seen: Lease) -> Lease | Contended:
    if operation == "take":
        return await table.take(seen, WorkerId(worker), LeaseSessionId(uuid.uuid4().hex))
    # Each racer pins a different end, as two attempts of a task would.
    start = seen.pin.end if seen.pin else seen.checkpoint
    return await table.pin(seen, Position(str((start.number if start.is_record else 0) + len(worker))))


def _result(outcome: Lease | Contended) -> dict[str, object]:
    """Whether this racer won, and the resulting lease, on which all racers must agree."""
    lease = outcome.current if isinstance(outcome, Contended) else outcome
    assert lease is not None
    end = str(lease.pin.end) if lease.pin else None
    return {"won": isinstance(outcome, Lease), "counter": lease.counter, "session": lease.session, "end": end}


if __name__ == "__main__":
    _, location_json, operation, worker = sys.argv
    asyncio.run(race(TableLocation(**json.loads(location_json)), operation, worker))


def command(location: TableLocation, operation: str, worker: str) -> list[str]:
    """The command line of a racer."""
    return [sys.executable, "-m", __name__, json.dumps(asdict(location)), operation, worker]
