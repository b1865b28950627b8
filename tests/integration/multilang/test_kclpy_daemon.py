"""kclpy's own sample through `leasehold multilang`: every record at least once, in order, and its checkpoints."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from leasehold.core.position import SHARD_END
from leasehold.local import LocalKinesis
from tests.integration.multilang.daemon_world import DEADLINE_S, KCLPY, PROGRAMS, DaemonWorld, is_running

PARENT, LEFT, RIGHT = "shardId-000000000000", "shardId-000000000002", "shardId-000000000003"
FIRST = [f"first-{number}" for number in range(20)]
SECOND = [f"second-{number}" for number in range(20)]
RECORDING = f"{sys.executable} -u {PROGRAMS / 'recording_app.py'}"


@pytest.fixture
def world(local_kinesis: LocalKinesis, tmp_path: Path, unique_name: Callable[[str], str]) -> DaemonWorld:
    """Create a stream with some records."""
    if KCLPY is None:
        pytest.skip("kclpy is not installed: run `make setup-servers`")
    world = DaemonWorld(local_kinesis, unique_name("orders"), tmp_path)
    world.put(*FIRST)
    return world


def test_the_sample_of_kclpy_unchanged(world: DaemonWorld) -> None:
    """It checkpoints its first batch, the end of a shard that is split, and everything at SIGTERM."""
    sample = f"{sys.executable} {KCLPY}/samples/sample_kclpy_app.py"
    with world.daemon("--log-level", "info", executableName=sample) as daemon:
        daemon.wait_for(lambda: len(world.leases()) == 2)
        daemon.wait_for(lambda: all(lease.checkpoint.is_record for lease in world.leases().values()))
        world.split()
        world.put(*SECOND)
        daemon.wait_for(lambda: PARENT in world.leases() and world.leases()[PARENT].checkpoint == SHARD_END)
        daemon.wait_for(lambda: all(world.leases()[shard].checkpoint.is_record for shard in (LEFT, RIGHT)))
        assert daemon.stop() == 0
        log = daemon.log()
    leases = world.leases()
    assert all(lease.owner is None for lease in leases.values() if lease.checkpoint != SHARD_END)
    shards = world.client.list_shards(StreamName=world.stream)["Shards"]
    for shard in (
        each["ShardId"] for each in shards if "EndingSequenceNumber" not in each["SequenceNumberRange"]
    ):
        iterator = world.client.get_shard_iterator(
            StreamName=world.stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        records = world.client.get_records(ShardIterator=iterator)["Records"]
        assert leases[shard].checkpoint.sequence_number == records[-1]["SequenceNumber"]
    assert "stderr: Record (Partition Key" in log
    assert "ended code=0" in log
    assert not any(map(is_running, daemon.children()))


def test_children_that_die_hang_and_print_junk_lose_nothing(world: DaemonWorld) -> None:
    """Their shard begins again from its checkpoint; the other shards go on."""
    with world.daemon(executableName=RECORDING, timeoutInSeconds=10) as daemon:
        daemon.wait_for(lambda: world.has_handled(*FIRST))
        world.put("die", "junk", *SECOND)
        daemon.wait_for(lambda: world.has_handled(*SECOND, "die", "junk"))
        pids = [each["pid"] for each in world.handled() if is_running(each["pid"])]
        os.kill(pids[-1], signal.SIGKILL)  # while it is idle
        world.put("hang", "last")
        daemon.wait_for(lambda: world.has_handled("hang", "last"))
        world.split()
        world.put("after", *[f"third-{number}" for number in range(20)])
        daemon.wait_for(lambda: world.has_handled("after", *[f"third-{number}" for number in range(20)]))
        assert daemon.stop() == 0
        log = daemon.log()
    world.check_order()
    assert "ended during processRecords" in log
    assert "has not answered processRecords for 10 s (timeoutInSeconds)" in log
    assert "stdout: junk on stdout, without a line end" in log
    assert "ended code=-9" in log
    assert not any(map(is_running, daemon.children()))


@pytest.mark.slow
def test_the_sample_of_kclpy_in_this_process(world: DaemonWorld) -> None:
    """The same class and the same properties file, without a child process."""
    world.write_properties(executableName="sample_kclpy_app.py")
    target = "samples.sample_kclpy_app:RecordProcessor"
    with world.command("run", "--kclpy", target, "--properties", "app.properties") as worker:
        worker.wait_for(lambda: len(world.leases()) == 2)
        worker.wait_for(lambda: all(lease.checkpoint.is_record for lease in world.leases().values()))
        world.split()
        worker.wait_for(lambda: PARENT in world.leases() and world.leases()[PARENT].checkpoint == SHARD_END)
        assert worker.stop() == 0
    assert all(lease.owner is None for lease in world.leases().values() if lease.checkpoint != SHARD_END)


@pytest.mark.slow
def test_with_exit_on_failure_a_child_that_dies_ends_the_daemon(world: DaemonWorld) -> None:
    """As in Java, but the other shards are drained first. The records come by enhanced fan-out."""
    with world.daemon("--exit-on-failure", executableName=RECORDING, retrievalMode="FANOUT") as daemon:
        daemon.wait_for(lambda: world.has_handled(*FIRST))
        world.put("die")
        assert daemon.process.wait(DEADLINE_S) == 1
    assert all(lease.owner is None for lease in world.leases().values())


@pytest.mark.slow
def test_children_exit_when_the_daemon_is_killed(world: DaemonWorld) -> None:
    """They see the end of their input."""
    with world.daemon(executableName=RECORDING) as daemon:
        daemon.wait_for(lambda: world.has_handled(*FIRST))
        children = daemon.children()
        assert len(children) == 2
        daemon.process.kill()
        deadline = time.monotonic() + DEADLINE_S
        while any(map(is_running, children)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
