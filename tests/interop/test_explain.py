"""`leasehold explain` on a fleet of Java members only: the command needs no Leasehold worker, and writes nothing."""

import json
import signal
from datetime import timedelta
from typing import Any

import pytest

from leasehold.local import LocalKinesis
from tests.integration.cli_process import start_cli
from tests.interop.fleet_run import DEADLINE_S, SHARDS, FleetRun
from tests.interop.mixed_fleet import BY_COUNT, FAILOVER_MS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def explain(fleet_run: FleetRun) -> dict[str, list[dict[str, Any]]]:
    """All findings of the command by their code."""
    fleet = fleet_run.fleet
    urls = ("--dynamodb-endpoint-url", fleet.dynamodb_url, "--kinesis-endpoint-url", fleet.kinesis_url)
    where = ("--application", fleet.application, "--region", "us-east-1", *urls, "--stream", fleet.stream)
    watch = ("--watch", str(FAILOVER_MS / 1000), "--json")
    with start_cli("explain", *where, *watch, folder=fleet.folder) as process:
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert out, err
    shown = json.loads(out)
    assert process.returncode == (0 if shown["ok"] else 1)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in [*shown["fleet"], *(each for shard in shown["shards"] for each in shard["findings"])]:
        found.setdefault(finding["code"], []).append(finding)
    return found


def wait_for(fleet_run: FleetRun, code: str) -> list[dict[str, Any]]:
    """Explain until a finding appears, with a remedy."""
    seen: dict[str, list[dict[str, Any]]] = {}

    def is_found() -> bool:
        seen.clear()
        seen.update(explain(fleet_run))
        return code in seen

    fleet_run.wait(is_found, f"explain names {code}")
    assert all(each["remedy"] for each in seen[code])
    return seen[code]


def test_five_situations_of_a_java_fleet_are_named(fleet_run: FleetRun) -> None:
    """A paused member, no member, records that are lost soon, lost records, a row that cannot be read."""
    fleet, kinesis = fleet_run.fleet, LocalKinesis(fleet_run.fleet.kinesis_url)
    java = fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(java, leases=SHARDS)
    fleet_run.wait_until_all_is_handled()

    fleet.running[java].send_signal(signal.SIGSTOP)
    silent = wait_for(fleet_run, "owner_silent")
    assert all(f"its owner {java} is silent" in each["text"] for each in silent)
    fleet.running[java].send_signal(signal.SIGCONT)

    fleet_run.kill(java)
    (nobody,) = wait_for(fleet_run, "no_active_worker")
    assert "start a worker" in nobody["remedy"]

    kinesis.advance(timedelta(hours=20))
    (near, *_) = wait_for(fleet_run, "retention_nearly_reached")
    assert "the first records are lost in" in near["text"]
    kinesis.advance(timedelta(hours=5))
    (gone, *_) = wait_for(fleet_run, "position_trimmed")
    assert "no longer retained" in gone["text"]

    row = {"leaseKey": {"S": "shardId-000000000000"}, "leaseCounter": {"S": "many"}, "checkpoint": {"S": "1"}}
    fleet_run.table.dynamodb.put_item(TableName=fleet.application, Item=row)
    (junk,) = wait_for(fleet_run, "unreadable_row")
    assert "shardId-000000000000" in junk["text"]
