"""Workers that archive a stream by fan-out are killed and paused: the archive has every record exactly once."""

import random
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from leasehold.local import LocalKinesis
from tests.contract.lease_stores import new_location
from tests.fleet.options import consumer_options
from tests.fleet.record_producer import RecordProducer
from tests.fleet.worker_processes import WorkerProcesses, wait_until

DEADLINE_S = 180.0


def archived(folder: Path) -> list[int]:
    """The numbers of all archived records."""
    if not any(folder.rglob("*.parquet")):
        return []
    table = ds.dataset(folder, format="parquet").to_table(columns=["data"])
    return sorted(int(data) for data in table["data"].to_pylist())


@pytest.mark.slow
def test_the_archive_has_every_record_once(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A reshard, a kill, a cut subscription and a pause, each in the middle of the stream."""
    location = new_location(request, "sqlite", tmp_path)
    folder = tmp_path / "archive"
    with LocalKinesis.in_process("--stream", "orders:4") as kinesis:
        options = consumer_options(location, kinesis.endpoint_url, "orders")
        options |= {"retrieval": "fan_out", "archive": {"url": str(folder)}}
        workers = WorkerProcesses(tmp_path, options, "tests.chaos.archiving_program")
        producer = RecordProducer(kinesis.client(), "orders", random.Random(7))

        def put_and_wait(count: int = 500) -> None:
            producer.put(count, count)
            # Records that are archived twice would also satisfy this, and fail at the end.
            wait_until(lambda: len(archived(folder)) >= producer.produced, "all archived", DEADLINE_S)

        try:
            killed, paused = workers.start(), workers.start()
            put_and_wait()
            producer.put(500, 500)
            producer.reshard()
            workers.kill(killed)
            workers.start()
            kinesis.plan_fan_out_fault("cut", times=2)
            put_and_wait()
            producer.put(500, 500)
            workers.pause_outside_a_write(paused)
            put_and_wait()
            workers.resume(paused)
            put_and_wait()
            workers.stop_all()
        finally:
            workers.kill_all()
    assert archived(folder) == list(range(producer.produced))
