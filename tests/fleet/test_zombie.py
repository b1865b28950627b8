"""A process that slept past its lease and wakes up can neither move a checkpoint nor end a shard."""

import asyncio
import random
from pathlib import Path

import pytest

from leasehold.core.model import Lease, LeaseKey
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.local import LocalKinesis
from tests.contract.lease_stores import SHARED, TableLocation, new_location
from tests.fleet.options import consumer_options
from tests.fleet.record_producer import RecordProducer
from tests.fleet.run_check import read_logs
from tests.fleet.worker_processes import WorkerProcesses, wait_until

PARENT = LeaseKey("shardId-000000000000")
DEADLINE_S = 120.0


def _leases(where: TableLocation) -> dict[LeaseKey, Lease]:
    async def look() -> dict[LeaseKey, Lease]:
        table = LeaseTable(where.open())
        listing = await table.list()
        await table.close()
        return {lease.key: lease for lease in listing.leases}

    return asyncio.run(look())


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHARED)
def test_a_zombie_changes_nothing(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """While one worker sleeps, another finishes its shard; the sleeper wakes up, and not a lease has changed by it."""
    where = new_location(request, kind, tmp_path)
    with LocalKinesis.in_process() as kinesis:
        stream = f"zombie-{kind}"
        client = kinesis.client()
        client.create_stream(StreamName=stream, ShardCount=1)
        production = RecordProducer(client, stream, random.Random(1))
        options = consumer_options(where, kinesis.endpoint_url, stream) | {"clean_up_every": "10m"}
        fleet = WorkerProcesses(tmp_path, options)
        try:
            sleeper = fleet.start()
            production.put(400, 400)
            wait_until(lambda: fleet.handled() >= 100, "the sleeper has begun", DEADLINE_S)
            fleet.pause(sleeper)
            heir = fleet.start()
            production.put(400, 400)
            production.reshard()  # the shard ends; its children have leases of their own
            wait_until(
                lambda: {record.number for record in read_logs(tmp_path)} == set(range(production.produced)),
                "the heir has handled everything",
                DEADLINE_S,
            )
            wait_until(
                lambda: _leases(where)[PARENT].checkpoint.is_shard_end, "the shard has ended", DEADLINE_S
            )
            before = _leases(where)[PARENT]
            fleet.go_on(sleeper)
            wait_until(lambda: "lease lost" in fleet.output_of(sleeper), "the sleeper knows", DEADLINE_S)
            production.put(200, 200)
            wait_until(
                lambda: {record.number for record in read_logs(tmp_path)} == set(range(production.produced)),
                "the fleet goes on",
                DEADLINE_S,
            )
            assert _leases(where)[PARENT] == before
            late = [record for record in read_logs(tmp_path) if record.worker == sleeper]
            assert {record.token for record in late if record.shard == PARENT} <= {late[0].token}
            fleet.check_alive()
            fleet.stop(heir)
            fleet.stop(sleeper)
        finally:
            fleet.kill_all()
