"""`leasehold dashboard` as a process, on a real Kinesis server and a lease table in SQLite."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from leasehold.adapters.sqlite_rows import SqliteRows
from leasehold.core.model import Lease, LeaseSessionId, ShardId, WorkerId, lease_key
from leasehold.core.position import TRIM_HORIZON
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.local import LocalKinesis
from tests.integration.cli_process import start_cli

DEADLINE_S = 90
SHARDS = [ShardId(f"shardId-{number:012}") for number in range(2)]


@pytest.fixture(scope="module")
def kinesis() -> Iterator[LocalKinesis]:
    with LocalKinesis.in_thread(streams={"orders": 2}) as server:
        yield server


def write_leases(file: Path) -> None:
    """Leases of a worker that is gone."""

    async def run() -> None:
        table = LeaseTable(SqliteRows(file))
        await table.prepare()
        for shard in SHARDS:
            lease = Lease(key=lease_key(shard), shard_id=shard, checkpoint=TRIM_HORIZON)
            await table.create(lease)
            await table.take(lease, WorkerId("<b>anna</b>"), LeaseSessionId("s"))
        await table.close()

    asyncio.run(run())


@contextmanager
def running(*arguments: str, folder: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Run the command, and yield its address."""
    with start_cli("dashboard", "--port", "0", *arguments, folder=folder) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert " at http://127.0.0.1:" in line, process.communicate(timeout=30)
            yield line.partition(" at ")[2].split()[0], process
        finally:
            if process.poll() is None:
                process.kill()


def wait_for(url: str, condition: Callable[[Any], bool]) -> Any:
    """The first view for which this is true."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with urlopen(f"{url}api/view?frame=9999") as response:
            view = json.load(response)
        if condition(view):
            return view
        time.sleep(0.1)
    raise AssertionError(f"not true within {DEADLINE_S} s: {view}")


def test_a_fleet_is_shown_recorded_and_replayed(kinesis: LocalKinesis, tmp_path: Path) -> None:
    """A silent owner has its sentence and remedy; a table that disappears is named; SIGTERM ends with code 0."""
    write_leases(tmp_path / "leases.sqlite")
    options = (
        "--sqlite",
        "leases.sqlite",
        "--kinesis-endpoint-url",
        kinesis.endpoint_url,
        "--stream",
        "orders",
    )
    more = ("--interval", "1", "--watch", "2", "--record", "incident.jsonl")
    with running(*options, *more, folder=tmp_path) as (url, process):
        view = wait_for(url, lambda view: view["judged"])
        assert {(row["state"], row["owner"], row["lag"]) for row in view["shards"].values()} == {
            ("silent", "<b>anna</b>", 0)
        }
        assert [finding["code"] for finding in view["findings"]] == ["no_active_worker"]
        (group,) = view["groups"]
        assert (group["code"], group["count"]) == ("owner_silent", 2)
        assert group["remedy"] == "no other worker is active: start one, or restart this one"
        with sqlite3.connect(tmp_path / "leases.sqlite") as database:
            (table,) = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchone()
            database.execute(f'ALTER TABLE "{table}" RENAME TO gone')
        failed = wait_for(url, lambda view: view["unread"])
        assert failed["unread"][0].startswith("the fleet cannot be read: ")
        assert len(failed["shards"]) == 2  # as last seen
        with sqlite3.connect(tmp_path / "leases.sqlite") as database:
            database.execute(f'ALTER TABLE gone RENAME TO "{table}"')
        wait_for(url, lambda view: not view["unread"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    with running("--replay", "incident.jsonl", folder=tmp_path) as (url, process):
        view = wait_for(url, lambda _view: True)
        assert view["groups"][0]["code"] == "owner_silent"
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
