"""`leasehold lag` as a process, on a Kinesis server whose clock the test moves."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from leasehold.adapters.sqlite_rows import SqliteRows
from leasehold.core.model import Lease, LeaseSessionId, ShardId, StreamIdentifier, WorkerId, lease_key
from leasehold.core.position import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Position
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.local import LocalKinesis
from tests.integration.cli_process import Done, cli

SHARDS = [ShardId(f"shardId-{number:012}") for number in range(6)]
ANNA = WorkerId("anna")
Lag = Callable[..., Done]


@pytest.fixture
def kinesis() -> Iterator[LocalKinesis]:
    """A server of this test alone, because it moves the clock."""
    with LocalKinesis.in_thread(streams={"orders": len(SHARDS)}) as server:
        yield server


@pytest.fixture
def lag(kinesis: LocalKinesis, tmp_path: Path) -> Lag:
    """Runs the command on the leases of `leases.sqlite`."""
    options = ("--sqlite", "leases.sqlite", "--kinesis-endpoint-url", kinesis.endpoint_url)
    return lambda *more: cli("lag", *options, *more, folder=tmp_path)


def put(kinesis: LocalKinesis, shard: ShardId) -> str:
    """One record into this shard; its sequence number."""
    client = kinesis.client()
    (found,) = [
        each for each in client.list_shards(StreamName="orders")["Shards"] if each["ShardId"] == shard
    ]
    answer = client.put_record(
        StreamName="orders",
        Data=b"x",
        PartitionKey="k",
        ExplicitHashKey=found["HashKeyRange"]["StartingHashKey"],
    )
    assert answer["ShardId"] == shard
    return str(answer["SequenceNumber"])


def write_leases(folder: Path, checkpoints: Mapping[ShardId, Position], stream: str | None = None) -> None:
    """A lease for each shard: free at a sentinel, else taken by Anna and checkpointed."""

    async def run() -> None:
        table = LeaseTable(SqliteRows(folder / "leases.sqlite"))
        await table.prepare()
        for shard, checkpoint in checkpoints.items():
            identifier = None if stream is None else StreamIdentifier(f"123456789012:{stream}:1700000000")
            new = Lease(
                key=lease_key(shard, identifier),
                shard_id=shard,
                stream=identifier,
                checkpoint=TRIM_HORIZON if checkpoint.is_record else checkpoint,
            )
            await table.create(new)
            if checkpoint.is_record:
                held = await table.take(new, ANNA, LeaseSessionId("h"))
                assert isinstance(held, Lease)
                await table.checkpoint(held, checkpoint)
        await table.close()

    asyncio.run(run())


def shown(done: Done) -> list[dict[str, Any]]:
    """The shards of a JSON answer, in its order."""
    assert done.code == 0, done.err
    shards: list[dict[str, Any]] = json.loads(done.out)["shards"]
    return shards


def test_the_lag_is_measured_at_the_checkpoint(kinesis: LocalKinesis, lag: Lag, tmp_path: Path) -> None:
    """The furthest behind comes first; sentinels and unknowns say what they mean; ended shards are left out."""
    old, _, alone = put(kinesis, SHARDS[0]), put(kinesis, SHARDS[1]), put(kinesis, SHARDS[2])
    kinesis.advance(timedelta(hours=2))
    older_than_the_tip = put(kinesis, SHARDS[1])
    kinesis.advance(timedelta(hours=1))
    put(kinesis, SHARDS[0])
    put(kinesis, SHARDS[1])
    write_leases(
        tmp_path,
        {
            SHARDS[0]: Position(old),
            SHARDS[1]: Position(older_than_the_tip),
            SHARDS[2]: Position(alone, 5),
            SHARDS[3]: LATEST,
            SHARDS[4]: AT_TIMESTAMP,
            SHARDS[5]: SHARD_END,
        },
    )
    found = shown(lag("--stream", "orders", "--json"))
    hours = [each["millis_behind"] and each["millis_behind"] // 3_600_000 for each in found]
    assert [(each["shard"], behind) for each, behind in zip(found, hours, strict=True)] == [
        (SHARDS[0], 3),
        (SHARDS[1], 1),
        (SHARDS[2], 0),
        (SHARDS[3], 0),
        (SHARDS[4], None),
    ]
    assert found[2] == {
        "key": SHARDS[2],
        "shard": SHARDS[2],
        "stream": None,
        "state": "held",
        "owner": "anna",
        "checkpoint": {"sequence_number": alone, "sub_sequence_number": 5},
        "millis_behind": 0,
        "note": "",
    }
    assert found[3]["note"] == "nothing done yet; begins at the tip"
    assert "only the workers know" in found[4]["note"]

    table = lag("--stream", "orders")
    assert table.code == 0
    header, first, *_, last = table.lines()
    assert header.split() == ["shard", "behind", "state", "owner", "checkpoint", "note"]
    assert first.startswith(f"{SHARDS[0]}  3 h 0 min  held   anna")
    assert last == "5 shards; furthest behind: 3 h 0 min"


def test_a_shard_that_was_never_read_is_behind_by_its_oldest_record(
    kinesis: LocalKinesis, lag: Lag, tmp_path: Path
) -> None:
    """A lease at TRIM_HORIZON has everything before it."""
    put(kinesis, SHARDS[0])
    kinesis.advance(timedelta(hours=1))
    put(kinesis, SHARDS[0])
    write_leases(tmp_path, {SHARDS[0]: TRIM_HORIZON})
    (only,) = shown(lag("--stream", "orders", "--json"))
    assert only["millis_behind"] // 3_600_000 == 1
    assert (only["state"], only["owner"], only["note"]) == ("free", None, "nothing done yet")


def test_trimmed_records_are_told(kinesis: LocalKinesis, lag: Lag, tmp_path: Path) -> None:
    """When the record at the checkpoint is gone, others may be, too."""
    gone = put(kinesis, SHARDS[0])
    kinesis.trim("orders")
    put(kinesis, SHARDS[0])
    write_leases(tmp_path, {SHARDS[0]: Position(gone)})
    (only,) = shown(lag("--stream", "orders", "--json"))
    assert "may have been trimmed" in only["note"]


def test_a_shard_that_the_stream_does_not_know_hides_no_other(
    kinesis: LocalKinesis, lag: Lag, tmp_path: Path
) -> None:
    """A leftover lease is told beside the others."""
    write_leases(tmp_path, {SHARDS[0]: TRIM_HORIZON, ShardId("shardId-000000000077"): TRIM_HORIZON})
    known, unknown = shown(lag("--stream", "orders", "--json"))
    assert known["millis_behind"] == 0
    assert (unknown["millis_behind"], unknown["note"]) == (None, "the stream has no such shard")


def test_leases_of_several_streams_name_them_themselves(
    kinesis: LocalKinesis, lag: Lag, tmp_path: Path
) -> None:
    """In multi-stream mode no --stream is needed, and one can be chosen."""
    kinesis.client().create_stream(StreamName="payments", ShardCount=1)
    write_leases(tmp_path, {SHARDS[0]: TRIM_HORIZON}, stream="orders")
    write_leases(tmp_path, {SHARDS[0]: TRIM_HORIZON}, stream="payments")
    assert [each["millis_behind"] for each in shown(lag("--json"))] == [0, 0]
    (chosen,) = shown(lag("--stream", "payments", "--json"))
    assert chosen["stream"] == "123456789012:payments:1700000000"


def test_a_stream_that_is_not_there_is_told_in_a_sentence(lag: Lag, tmp_path: Path) -> None:
    """Exit code 1, the name of the stream, and no traceback."""
    write_leases(tmp_path, {SHARDS[0]: TRIM_HORIZON})
    done = lag("--stream", "no-such-stream")
    assert (done.code, done.out) == (1, "")
    assert "Error: stream no-such-stream" in done.err
    assert "Traceback" not in done.err


def test_leases_that_do_not_name_their_stream_need_it(lag: Lag, tmp_path: Path) -> None:
    """Exit code 2, and what to add."""
    write_leases(tmp_path, {SHARDS[0]: TRIM_HORIZON})
    done = lag()
    assert (done.code, done.out) == (2, "")
    assert "--stream NAME" in done.err


def test_without_leases_nothing_is_behind(lag: Lag, tmp_path: Path) -> None:
    """A fleet that has not begun is no error."""
    write_leases(tmp_path, {})
    done = lag("--stream", "orders")
    assert (done.code, done.lines()) == (0, ["0 shards; furthest behind: unknown"])
