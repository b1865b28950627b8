"""`leasehold explain` as a process, on a Kinesis server whose clock the test advances."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from leasehold.adapters.sqlite_rows import SqliteRows
from leasehold.core.leases.row_writes import PutRow, Row, text
from leasehold.core.model import Lease, LeaseSessionId, ShardId, WorkerId, lease_key
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.local import LocalKinesis
from tests.integration.cli_process import CliResult, run_cli

SHARDS = [ShardId(f"shardId-{number:012}") for number in range(6)]
ANNA = WorkerId("anna")
Explain = Callable[..., CliResult]


@pytest.fixture
def kinesis() -> Iterator[LocalKinesis]:
    """Run a server for this test only, because it advances the clock."""
    with LocalKinesis.in_thread(streams={"orders": 3}) as server:
        yield server


@pytest.fixture
def explain(kinesis: LocalKinesis, tmp_path: Path) -> Explain:
    """Run the command on the leases in `leases.sqlite`."""
    options = ("--sqlite", "leases.sqlite", "--kinesis-endpoint-url", kinesis.endpoint_url)
    return lambda *more: run_cli("explain", *options, "--watch", "1", *more, folder=tmp_path)


def put(kinesis: LocalKinesis, shard: ShardId) -> str:
    """Put one record into this shard and return its sequence number."""
    client = kinesis.client()
    found = {each["ShardId"]: each for each in client.list_shards(StreamName="orders")["Shards"]}[shard]
    response = client.put_record(
        StreamName="orders",
        Data=b"x",
        PartitionKey="k",
        ExplicitHashKey=found["HashKeyRange"]["StartingHashKey"],
    )
    return str(response["SequenceNumber"])


def write_leases(folder: Path, *leases: Lease) -> None:
    """Create these leases, free or taken by their owner, each with its checkpoint."""

    async def run() -> None:
        table = LeaseTable(SqliteRows(folder / "leases.sqlite"))
        await table.prepare()
        for lease in leases:
            new = Lease(
                key=lease.key, shard_id=lease.shard_id, checkpoint=TRIM_HORIZON, parents=lease.parents
            )
            await table.create(new)
            held = await table.take(new, lease.owner or ANNA, LeaseSessionId("h"))
            assert isinstance(held, Lease)
            if lease.checkpoint != TRIM_HORIZON:
                held = await table.checkpoint(held, lease.checkpoint)
                assert isinstance(held, Lease)
            if lease.owner is None:
                await table.release(held)
        await table.close()

    asyncio.run(run())


def lease(shard: ShardId, checkpoint: Position, owner: WorkerId | None = ANNA, *parents: ShardId) -> Lease:
    return Lease(
        key=lease_key(shard),
        shard_id=shard,
        checkpoint=checkpoint,
        owner=owner,
        parents=frozenset(parents),
    )


def codes_by_shard(done: CliResult) -> dict[str, list[str]]:
    found: dict[str, Any] = json.loads(done.out)
    by_shard = {each["key"]: [finding["code"] for finding in each["findings"]] for each in found["shards"]}
    return by_shard | {"fleet": [finding["code"] for finding in found["fleet"]]}


def test_a_fleet_without_workers_is_explained(
    kinesis: LocalKinesis, explain: Explain, tmp_path: Path
) -> None:
    """A silent owner, a free lease, a trimmed and a nearly trimmed position, a child that waits."""
    client = kinesis.client()
    trimmed, kept = put(kinesis, SHARDS[0]), put(kinesis, SHARDS[1])
    put(kinesis, SHARDS[0])  # not done
    client.split_shard(StreamName="orders", ShardToSplit=SHARDS[2], NewStartingHashKey=str(2**128 // 6 * 5))
    kinesis.advance(timedelta(hours=20))
    put(kinesis, SHARDS[0])
    put(kinesis, SHARDS[1])
    put(kinesis, SHARDS[1])
    write_leases(
        tmp_path,
        lease(SHARDS[0], Position(trimmed)),
        lease(SHARDS[1], Position(kept), None),
        lease(SHARDS[2], TRIM_HORIZON, None),
        lease(SHARDS[3], TRIM_HORIZON, None, SHARDS[2]),
    )
    done = explain("--json", "--stream", "orders")
    assert done.code == 1, done.err
    found = codes_by_shard(done)
    assert found["fleet"] == ["no_active_worker"]
    assert found[SHARDS[0]][0] == "owner_silent"
    assert found[SHARDS[1]][0] == "free"
    assert "retention_nearly_reached" in found[SHARDS[0]]
    assert found[SHARDS[3]] == ["waits_for_parents"]
    kinesis.advance(timedelta(hours=5))
    trimmed_now = explain(SHARDS[0], "--stream", "orders")
    assert trimmed_now.code == 1
    assert f"! {SHARDS[0]}: the record at its checkpoint is no longer retained" in trimmed_now.out
    assert SHARDS[1] not in trimmed_now.out


def test_a_junk_row_in_a_fresh_table_and_a_recreated_stream_are_named(
    kinesis: LocalKinesis, explain: Explain, tmp_path: Path
) -> None:
    row = {"leaseKey": text(SHARDS[0]), "leaseCounter": {"S": "many"}, "checkpoint": text("1")}
    write_row(tmp_path, SHARDS[0], row)
    done = explain("--stream", "orders")
    assert done.code == 1
    assert f"! fleet: row '{SHARDS[0]}' of the lease table cannot be read" in done.out
    assert f"! {SHARDS[0]}: it gets no lease, because its row" in done.out

    with sqlite3.connect(tmp_path / "leases.sqlite") as file:
        (table,) = file.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 1").fetchone()
        file.execute(f'DELETE FROM "{table}"')
    write_leases(tmp_path, lease(SHARDS[0], Position("17")))
    recreated = explain("--stream", "orders")
    assert "! fleet: stream orders was deleted and created again" in recreated.out


def test_an_unknown_shard_is_refused_with_a_sentence(explain: Explain, tmp_path: Path) -> None:
    write_leases(tmp_path, lease(SHARDS[0], TRIM_HORIZON))
    done = explain("shardId-7")
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert "there is no lease with this id" in done.err
    assert "add --stream NAME" in done.err


def test_a_status_address_that_is_none_is_refused(explain: Explain, tmp_path: Path) -> None:
    write_leases(tmp_path, lease(SHARDS[0], TRIM_HORIZON))
    done = explain("--status", "notaurl")
    assert (done.code, done.out) == (2, "")
    assert "--status notaurl: expected http://host:port, the status address of a worker" in done.err


def test_a_short_watch_says_that_it_may_take_a_living_worker_for_silent(
    explain: Explain, tmp_path: Path
) -> None:
    write_leases(tmp_path, lease(SHARDS[0], TRIM_HORIZON))
    assert "a living one may seem silent: use a longer --watch" in explain("--stream", "orders").err


def test_a_child_without_a_lease_waits_for_its_parent(
    kinesis: LocalKinesis, explain: Explain, tmp_path: Path
) -> None:
    kinesis.client().split_shard(
        StreamName="orders", ShardToSplit=SHARDS[2], NewStartingHashKey=str(2**128 // 6 * 5)
    )
    leases = [lease(shard, TRIM_HORIZON, None) for shard in SHARDS[:3]]
    write_leases(tmp_path, *leases)
    child = explain(SHARDS[3], "--stream", "orders")
    assert f"  {SHARDS[3]}: it waits until its parent is read to the end, and gets a lease then" in child.out
    assert f"{SHARDS[2]} has no owner" in child.out
    assert f"  {SHARDS[4]}: it waits until" in explain("--stream", "orders").out


def test_an_unknown_shard_and_a_missing_fleet_have_another_exit_code_than_findings(
    kinesis: LocalKinesis, explain: Explain, tmp_path: Path
) -> None:
    """A script must not take a wrong name for a problem of the fleet."""
    write_leases(tmp_path, lease(SHARDS[0], Position(put(kinesis, SHARDS[0]))))
    assert explain(SHARDS[0], "--stream", "orders").code == 1
    unknown = explain("shardId-000000000999", "--stream", "orders")
    assert (unknown.code, "neither a lease nor a listed shard" in unknown.err) == (2, True)
    missing = run_cli("explain", "--leases", "sqlite:///absent.sqlite", folder=tmp_path)
    assert (missing.code, "there is no file absent.sqlite" in missing.err) == (2, True)


@pytest.mark.parametrize("owner", ["w" * 2_000, "two words " * 200], ids=["one-word", "many-words"])
def test_ids_of_thousands_of_characters_are_shortened_on_a_terminal_only(
    kinesis: LocalKinesis, explain: Explain, tmp_path: Path, owner: str
) -> None:
    """The sentence around the id stays readable, and JSON has the id whole."""
    junk = "j" * 2_000
    write_leases(tmp_path, lease(SHARDS[0], Position("17"), WorkerId(owner)))
    write_row(
        tmp_path, junk, {"leaseKey": text(junk), "leaseCounter": {"S": "many"}, "checkpoint": text("1")}
    )
    told = explain("--stream", "orders")
    listed = run_cli("leases", "--sqlite", "leases.sqlite", folder=tmp_path)
    assert max(map(len, (told.out + listed.out).splitlines())) < 1_500
    assert "jj…jj" in told.out
    assert "jj…jj" in listed.out
    assert "of the lease table cannot be read: " in told.out
    assert junk in explain("--stream", "orders", "--json").out
    as_json = run_cli("leases", "--sqlite", "leases.sqlite", "--json", folder=tmp_path).out
    assert [each["owner"] for each in json.loads(as_json)["leases"]] == [owner]


def write_row(folder: Path, key: str, row: Row) -> None:
    """Write a row that need not be a lease."""

    async def write() -> None:
        rows = SqliteRows(folder / "leases.sqlite")
        await rows.prepare()
        await rows.write(PutRow(key, row))
        await rows.close()

    asyncio.run(write())
