"""`leasehold dashboard` on a fleet of Java members only: it reads their tables, and needs nothing from them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import pytest

from tests.integration.cli_process import start_cli
from tests.interop.build import NEWEST
from tests.interop.fleet_run import FleetRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
THREE_TABLES = "3.4.2"
SHARDS = 8


@contextmanager
def shown(fleet_run: FleetRun) -> Iterator[str]:
    """Run the dashboard, and yield its address."""
    fleet = fleet_run.fleet
    urls = ("--dynamodb-endpoint-url", fleet.dynamodb_url, "--kinesis-endpoint-url", fleet.kinesis_url)
    where = ("--application", fleet.application, "--stream", fleet.stream, "--region", "us-east-1", *urls)
    more = ("--port", "0", "--interval", "1", "--watch", "10")
    with start_cli("dashboard", *where, *more, folder=fleet.folder) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert " at http://127.0.0.1:" in line
            yield line.partition(" at ")[2].split()[0]
        finally:
            process.kill()


def view(url: str) -> Any:
    with urlopen(f"{url}api/view") as response:
        return json.load(response)


@pytest.mark.parametrize("version", [NEWEST, THREE_TABLES])
def test_a_java_fleet_is_shown_and_its_silent_member_is_named(fleet_run: FleetRun, version: str) -> None:
    """A member reads all shards, and leads. Then it is killed: its shards are silent, with the remedy."""
    java = fleet_run.fleet.start_java(version)
    fleet_run.wait_until_read_by(java, leases=SHARDS)
    with shown(fleet_run) as url:
        fleet_run.wait(lambda: view(url)["judged"], "the fleet is judged")
        fleet_run.wait(lambda: view(url)["totals"]["read"] == SHARDS, "all shards are read")
        seen = view(url)
        assert seen["leader"] == java
        assert {row["name"] for row in seen["workers"].values()} == {java}
        assert seen["calls"]["heartbeats"] > 0
        fleet_run.wait(lambda: view(url)["totals"]["problems"] == 0, "no problem is left")
        assert all(row["lag"] is not None for row in view(url)["shards"].values())
        fleet_run.kill(java)
        fleet_run.wait(lambda: view(url)["totals"]["silent"] == SHARDS, "all owners are silent")
        (group,) = [group for group in view(url)["groups"] if group["code"] == "owner_silent"]
        assert group["count"] == SHARDS
        assert group["remedy"]
