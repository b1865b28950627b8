"""A process that was paused beyond the end of its lease can neither move a checkpoint nor end a shard."""

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


def _leases(location: TableLocation) -> dict[LeaseKey, Lease]:
    async def read() -> dict[LeaseKey, Lease]:
        table = LeaseTable(location.open())
        listing = await table.list()
        await table.close()
        return {lease.key: lease for lease in listing.leases}

    return asyncio.run(read())


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHARED)
def test_a_zombie_changes_no_lease(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """While one worker is paused, another finishes its shard. When the first resumes, it changes no lease."""
    location = new_location(request, kind, tmp_path)
    with LocalKinesis.in_process() as kinesis:
        stream = f"zombie-{kind}"
        client = kinesis.client()
        client.create_stream(StreamName=stream, ShardCount=1)
        producer = RecordProducer(client, stream, random.Random(1))
        options = consumer_options(location, kinesis.endpoint_url, stream) | {"clean_up_every": "10m"}
        fleet = WorkerProcesses(tmp_path, options)
        try:
            zombie = fleet.start()
            producer.put(400, 400)
            wait_until(lambda: fleet.handled() >= 100, "the zombie has started", DEADLINE_S)
            fleet.pause_outside_a_write(zombie)
            successor = fleet.start()
            producer.put(400, 400)
            producer.reshard()  # the shard ends; its children have leases of their own
            wait_until(
                lambda: {record.number for record in read_logs(tmp_path)} == set(range(producer.produced)),
                "the successor has handled everything",
                DEADLINE_S,
            )
            wait_until(
                lambda: _leases(location)[PARENT].checkpoint.is_shard_end, "the shard has ended", DEADLINE_S
            )
            before = _leases(location)[PARENT]
            fleet.resume(zombie)
            log = tmp_path / f"{zombie}.log"
            wait_until(lambda: "lease lost" in log.read_text(), "the zombie has noticed", DEADLINE_S)
            producer.put(200, 200)
            wait_until(
                lambda: {record.number for record in read_logs(tmp_path)} == set(range(producer.produced)),
                "the fleet continues",
                DEADLINE_S,
            )
            assert _leases(location)[PARENT] == before
            late = [record for record in read_logs(tmp_path) if record.worker == zombie]
            assert {record.fencing_token for record in late if record.shard == PARENT} <= {
                late[0].fencing_token
            }
            fleet.check_alive()
            fleet.stop(successor)
            fleet.stop(zombie)
        finally:
            fleet.kill_all()
