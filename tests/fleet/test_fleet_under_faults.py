"""A fleet of real processes loses no record while workers crash, freeze, stop and join and the stream is resharded."""

import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leasehold.local import LocalKinesis
from tests.contract.lease_stores import TableLocation, new_location
from tests.fleet.checkpoint_monitor import CheckpointMonitor
from tests.fleet.options import FAILOVER_S, consumer_options
from tests.fleet.record_producer import RecordProducer
from tests.fleet.run_check import RunCheck, check_run, read_logs
from tests.fleet.worker_processes import WorkerProcesses, wait_until
from tests.servers import Server

DEADLINE_S = 300.0


@dataclass(frozen=True)
class Load:
    """How many records are produced, in how many rounds. Each round has one fault and one reshard."""

    rounds: int
    plain: int
    aggregated: int
    per_aggregate: int = 20
    put_max: int = 500


FULL = Load(rounds=20, plain=5_000, aggregated=5_000)
# kinesis-local hashes a whole shard for every record put, so it can take only a few thousand Kinesis records.
SMALL = Load(rounds=10, plain=100, aggregated=2_000, per_aggregate=100, put_max=50)


def _inject(fleet: WorkerProcesses, round_number: int) -> None:
    """Inject one fault per round, in turn, into the oldest worker, because it holds the most leases."""
    victim = fleet.workers[0]
    match round_number % 5:
        case 0:
            fleet.kill(victim)
            fleet.start()
        case 1:
            fleet.add()
        case 2:
            fleet.pause(victim)
            time.sleep(FAILOVER_S + 2)  # the length of the pause is the fault itself, not a guess
            fleet.resume(victim)
        case 3:
            fleet.stop(victim)
        case _:
            pass
    fleet.check_alive()


def _run(
    location: TableLocation, kinesis: Any, options: dict[str, Any], folder: Path, load: Load
) -> RunCheck:
    stream = options["stream"]
    kinesis.create_stream(StreamName=stream, ShardCount=16)
    kinesis.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    rng = random.Random(4711)
    producer = RecordProducer(kinesis, stream, rng, load.per_aggregate, load.put_max)
    fleet = WorkerProcesses(folder, options)
    monitor = CheckpointMonitor(location)
    monitor_thread = threading.Thread(target=monitor.run, daemon=True)
    try:
        for _ in range(4):
            fleet.start()
        monitor_thread.start()
        for round_number in range(load.rounds):
            producer.put(load.plain, load.aggregated)
            producer.reshard()
            _inject(fleet, round_number)
        wait_until(
            # Count lines first, which is cheap, and read them only when there are enough.
            lambda: (
                fleet.handled() >= producer.produced
                and len({record.number for record in read_logs(folder)}) == producer.produced
            ),
            f"all {producer.produced} records handled",
            DEADLINE_S,
        )
        fleet.check_alive()
        fleet.stop_all()
    finally:
        fleet.kill_all()
        monitor.stop()
        monitor_thread.join()
    fleet.record_lost_leases()
    check = check_run(
        read_logs(folder),
        produced=producer.produced,
        parents=producer.parents(),
        faults_by_worker=fleet.faults_by_worker,
    )
    print(
        f"{location.kind}: produced {producer.produced} in {producer.kinesis_records} Kinesis records; "
        f"{producer.splits} splits, {producer.merges} merges; faults {dict(fleet.faults)}; "
        f"handled {check.handled}, repeated {check.repeated} {dict(check.repeat_causes)}; "
        f"{monitor.reads} reads of the table, {len(monitor.ended)} shards ended"
    )
    assert monitor.reads > 10
    assert fleet.faults["killed"] >= 2
    assert fleet.faults["paused"] >= 2
    assert fleet.faults["stopped"] >= 2
    assert fleet.faults["added"] >= 2
    assert producer.splits + producer.merges == load.rounds
    assert monitor.ended
    assert check.problems + monitor.problems == []
    return check


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "retrieval"), [("dynamodb_local", "polling"), ("sqlite", "fan_out")])
def test_nothing_is_lost_under_faults(
    kind: str, retrieval: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """200,000 records, half of them in aggregates, survive kills, pauses, stops and reshards."""
    location = new_location(request, kind, tmp_path)
    with LocalKinesis.in_process() as kinesis:
        options = consumer_options(location, kinesis.endpoint_url, f"faults-{kind}")
        _run(location, kinesis.client(), options | {"retrieval": retrieval}, tmp_path, FULL)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_on_other_servers(
    request: pytest.FixtureRequest, tmp_path: Path, kinesis_local: Server
) -> None:
    """The same on kinesis-local and ministack, with as many records as kinesis-local can take."""
    location = new_location(request, "ministack", tmp_path)
    options = consumer_options(location, kinesis_local.url, "faults-elsewhere")
    _run(location, kinesis_local.client("kinesis"), options, tmp_path, SMALL)
