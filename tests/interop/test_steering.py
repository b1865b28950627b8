"""`leasehold reset` and `leasehold release` on running fleets of Java, Python and Spark members, under load."""

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from tests.integration.cli_process import CliResult, start_cli
from tests.interop.build import KCL_2, NEWEST
from tests.interop.fleet_run import DEADLINE_S, FleetRun
from tests.interop.mixed_fleet import BY_COUNT, FAILOVER_MS
from tests.interop.spark_member import FILES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def start(fleet_run: FleetRun, command: str, *arguments: str) -> "subprocess.Popen[str]":
    """Start a command on the application of the fleet."""
    fleet = fleet_run.fleet
    urls = ("--dynamodb-endpoint-url", fleet.dynamodb_url, "--kinesis-endpoint-url", fleet.kinesis_url)
    where = ("--application", fleet.application, "--region", "us-east-1", *urls)
    failover = ("--failover-after", str(FAILOVER_MS / 1000))
    return start_cli(command, *where, *failover, *arguments, folder=fleet.folder)


def run(fleet_run: FleetRun, command: str, *arguments: str) -> CliResult:
    """Run a command on the application of the fleet until it ends."""
    with start(fleet_run, command, *arguments) as process:
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 0, f"{err}\n{fleet_run.table.leases()}"
    return CliResult(process.returncode, out, err)


def handled(fleet_run: FleetRun, worker: str | None = None) -> Counter[int]:
    """How often each record was handled, by this worker or at all."""
    return Counter(each.number for each in fleet_run.fleet.handled() if worker in {None, each.worker})


def wait_until_handled_again(fleet_run: FleetRun, again: range, before: Counter[int]) -> None:
    """Wait until each of these records was handled more often than before."""

    def is_handled() -> bool:
        now = handled(fleet_run)  # read once: it parses the output of all members
        return all(now[each] > before[each] for each in again)

    fleet_run.wait(is_handled, "the records come again")


def reset_to(fleet_run: FleetRun, at: str) -> None:
    """Reset all leases of the fleet to a time."""
    reset = run(fleet_run, "reset", "--stream", fleet_run.fleet.stream, "--to", at, "--yes", "--json")
    assert len(json.loads(reset.out)["moved"]) == 8


@contextmanager
def comes_again(fleet_run: FleetRun, first: int) -> Iterator[range]:
    """Check that the records from this one on come once more because of what the block does, and none before them.

    Records that are produced in the meantime come at least once. Afterwards all leases have moved on.
    """
    again = range(first, fleet_run.production.produced)
    fleet_run.wait_until_all_is_stored()
    before = handled(fleet_run)
    yield again

    def times() -> Counter[int]:
        now = handled(fleet_run)
        return Counter({each: now[each] - before[each] for each in range(again.stop)})

    fleet_run.wait(lambda: all(map(times().get, again)), "the records come again")
    fleet_run.wait_until_all_is_stored()
    wrong = {each: count for each, count in times().items() if count != int(each in again)}
    assert not wrong, f"handled after the reset, beside {again}: {wrong}"


@pytest.mark.parametrize("version", [NEWEST, KCL_2])
def test_a_fleet_is_reset_to_a_time(fleet_run: FleetRun, version: str) -> None:
    """Exactly the records since then come again, no record is lost, and no lease is stuck.

    KCL 3.x hands over on request. KCL 2.x knows no requests: its leases are taken after a while.
    """
    java = fleet_run.fleet.start_java(version, **(BY_COUNT if version == NEWEST else {}))
    fleet_run.wait_until_read_by(java, leases=8)
    python = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(python, leases=3)
    with fleet_run.pause_production():
        fleet_run.wait_until_all_is_handled()
        first, at = fleet_run.production.produced, datetime.now(UTC).isoformat(timespec="milliseconds")
    fleet_run.wait(lambda: fleet_run.production.produced > first + 100, "more records are produced")
    last = fleet_run.production.produced
    fleet_run.wait_until_all_is_handled()
    before = handled(fleet_run)
    reset_to(fleet_run, at)
    for worker in (java, python):
        fleet_run.faults_by_worker[worker].add("reset")
    again = range(first, last)
    wait_until_handled_again(fleet_run, again, before)
    fleet_run.conclude()
    now = handled(fleet_run)
    assert all(now[each] == before[each] for each in range(first))
    if version == NEWEST:
        assert all(now[each] == before[each] + 1 for each in again)


def test_a_fleet_with_a_query_is_reset_to_a_time(fleet_run: FleetRun) -> None:
    """First the query stops and names the option. With it, the query comes back, and follows a second reset while it
    runs. Each time exactly the records since then come again.
    """
    spark = fleet_run.start_spark(sink=FILES, balanceBy="count")
    fleet_run.wait_until_read_by(spark, leases=8)
    with fleet_run.pause_production():
        fleet_run.wait_until_all_is_handled()
        first, at = fleet_run.production.produced, datetime.now(UTC).isoformat(timespec="milliseconds")
    # The query knows each shard beyond the new position, so it refuses whichever lease it gets.
    fleet_run.wait_until_read_by(spark, leases=8)
    java, python = fleet_run.fleet.start_java(**BY_COUNT), fleet_run.fleet.start_python()
    fleet = (java, python, spark)
    for worker in fleet:
        fleet_run.wait_until_read_by(worker, leases=2)
        fleet_run.faults_by_worker[worker].add("reset")

    with comes_again(fleet_run, first):
        reset_to(fleet_run, at)
        assert fleet_run.fleet.wait_for_end(spark) == 1
        assert "onLeasesBehind=leases" in fleet_run.fleet.output_of(spark)
        fleet_run.fleet.restart_spark(spark, onLeasesBehind="leases")
    for worker in fleet:
        fleet_run.wait_until_read_by(worker, leases=2)

    with comes_again(fleet_run, first) as again:
        before = handled(fleet_run, spark)
        reset_to(fleet_run, at)
    now = handled(fleet_run, spark)
    assert any(now[each] > before[each] for each in again), "the query delivered nothing again"
    for worker in fleet:
        fleet_run.wait_until_read_by(worker, leases=2)
    fleet_run.conclude()


def interrupt_reset(fleet_run: FleetRun, at: str, number: signal.Signals) -> None:
    """Start a reset to a time, and send it a signal while it waits for owners."""
    options = ("--stream", fleet_run.fleet.stream, "--to", at, "--yes")
    with start(fleet_run, "reset", *options) as process:
        assert process.stderr is not None
        assert "waiting for" in process.stderr.readline()
        process.send_signal(number)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode in {-number, 128 + number}, "the reset ended before the signal"


def named_in_leases(fleet_run: FleetRun) -> set[str]:
    """Every member that a lease names."""
    leases = fleet_run.table.leases()
    return {str(name) for each in leases for name in (each.owner, each.checkpoint_owner) if name is not None}


def test_interrupted_resets_of_a_fleet_with_a_query_lose_nothing(fleet_run: FleetRun) -> None:
    """Java, Python and Spark read under load. Resets are ended by SIGINT, SIGTERM and kill -9, then one is completed.

    After a signal no lease names the command any more. Records before the time never come again, the others come
    again after the last reset, none is lost, and no lease is stuck.
    """
    spark = fleet_run.start_spark(sink=FILES, balanceBy="count", onLeasesBehind="leases")
    fleet_run.wait_until_read_by(spark, leases=8)
    java, python = fleet_run.fleet.start_java(**BY_COUNT), fleet_run.fleet.start_python()
    fleet = (java, python, spark)
    for worker in fleet:
        fleet_run.wait_until_read_by(worker, leases=2)
        fleet_run.faults_by_worker[worker].add("reset")
    with fleet_run.pause_production():
        fleet_run.wait_until_all_is_handled()
        first, at = fleet_run.production.produced, datetime.now(UTC).isoformat(timespec="milliseconds")
        early = handled(fleet_run)
    fleet_run.wait(lambda: fleet_run.production.produced > first + 100, "more records are produced")
    fleet_run.wait_until_all_is_stored()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        interrupt_reset(fleet_run, at, number)
        if number is not signal.SIGKILL:
            assert not [each for each in named_in_leases(fleet_run) if each.startswith("leasehold-reset")]
        fleet_run.wait_until_nothing_is_stuck()
    fleet_run.wait_until_all_is_stored()
    again, before = range(first, fleet_run.production.produced), handled(fleet_run)
    reset_to(fleet_run, at)
    wait_until_handled_again(fleet_run, again, before)
    for worker in fleet:
        fleet_run.wait_until_read_by(worker, leases=2)
    fleet_run.conclude()
    now = handled(fleet_run)
    assert [each for each in range(first) if now[each] != early[each]] == []


def test_a_java_member_is_drained(fleet_run: FleetRun) -> None:
    """Its leases go to the other member, and nothing is handled twice."""
    java = fleet_run.fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(java, leases=8)
    python = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(python, leases=4)
    released = run(fleet_run, "release", "--worker", java, "--yes", "--json")
    leases = json.loads(released.out)["leases"]
    assert {each["next_owner"] for each in leases} == {python}
    fleet_run.wait_until_read_by(python, leases=len(leases))
    assert fleet_run.conclude().repeated == 0
