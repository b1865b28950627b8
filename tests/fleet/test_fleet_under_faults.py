"""A fleet of real processes loses nothing while its members die, freeze, stop and join and the stream is resharded."""

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
from tests.fleet.run_check import Verdict, judge, read_logs
from tests.fleet.worker_processes import WorkerProcesses, wait_until
from tests.servers import Server

DEADLINE_S = 300.0


@dataclass(frozen=True)
class Load:
    """How much is produced, in how many portions; one fault and one reshard go with each portion."""

    portions: int
    plain: int
    aggregated: int
    per_aggregate: int = 20
    put_max: int = 500


FULL = Load(portions=20, plain=5_000, aggregated=5_000)
# kinesis-local hashes a whole shard for every record put: a few thousand Kinesis records are all it can take.
SMALL = Load(portions=10, plain=100, aggregated=2_000, per_aggregate=100, put_max=50)


def _inject(fleet: WorkerProcesses, portion: int) -> None:
    """One fault a portion, in turn; the oldest worker is the victim, since it has the most to lose."""
    victim = fleet.workers[0]
    match portion % 5:
        case 0:
            fleet.kill(victim)
            fleet.start()
        case 1:
            fleet.add()
        case 2:
            fleet.pause(victim)
            time.sleep(
                FAILOVER_S + 2
            )  # how long it sleeps is the fault itself, not a guess at someone's speed
            fleet.go_on(victim)
        case 3:
            fleet.stop(victim)
        case _:
            pass
    fleet.check_alive()


def _run(
    where: TableLocation, kinesis: Any, kinesis_url: str, stream: str, folder: Path, load: Load
) -> Verdict:
    kinesis.create_stream(StreamName=stream, ShardCount=16)
    kinesis.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    rng = random.Random(4711)
    production = RecordProducer(kinesis, stream, rng, load.per_aggregate, load.put_max)
    fleet = WorkerProcesses(folder, consumer_options(where, kinesis_url, stream))
    watch = CheckpointMonitor(where)
    watching = threading.Thread(target=watch.run, daemon=True)
    try:
        for _ in range(4):
            fleet.start()
        watching.start()
        for portion in range(load.portions):
            production.put(load.plain, load.aggregated)
            production.reshard()
            _inject(fleet, portion)
        wait_until(
            # Counting lines is cheap; only when there are enough of them is it worth while to read them.
            lambda: (
                fleet.handled() >= production.produced
                and len({record.number for record in read_logs(folder)}) == production.produced
            ),
            f"all {production.produced} records handled",
            DEADLINE_S,
        )
        fleet.check_alive()
        fleet.stop_all()
    finally:
        fleet.kill_all()
        watch.stop()
        watching.join()
    fleet.note_lost_leases()
    verdict = judge(
        read_logs(folder),
        produced=production.produced,
        parents=production.parents(),
        fates=fleet.fates,
    )
    print(
        f"{where.kind}: produced {production.produced} in {production.kinesis_records} Kinesis records; "
        f"{production.splits} splits, {production.merges} merges; faults {dict(fleet.faults)}; "
        f"handled {verdict.handled}, repeated {verdict.repeated} {dict(verdict.repeated_because_of)}; "
        f"{watch.looks} looks at the table, {len(watch.ended)} shards ended"
    )
    assert watch.looks > 10
    assert fleet.faults["killed"] >= 2
    assert fleet.faults["paused"] >= 2
    assert fleet.faults["stopped"] >= 2
    assert fleet.faults["added"] >= 2
    assert production.splits + production.merges == load.portions
    assert watch.ended
    assert verdict.problems + watch.problems == []
    return verdict


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["dynamodb_local", "sqlite"])
def test_nothing_is_lost_under_faults(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """200,000 records, half of them in aggregates, through kills, pauses, stops and reshards: every promise is kept."""
    where = new_location(request, kind, tmp_path)
    with LocalKinesis.in_process() as kinesis:
        _run(where, kinesis.client(), kinesis.endpoint_url, f"faults-{kind}", tmp_path, FULL)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_on_other_servers(
    request: pytest.FixtureRequest, tmp_path: Path, kinesis_local: Server
) -> None:
    """The same on kinesis-local and ministack, with as much as kinesis-local can take."""
    where = new_location(request, "ministack", tmp_path)
    _run(where, kinesis_local.client("kinesis"), kinesis_local.url, "faults-elsewhere", tmp_path, SMALL)
