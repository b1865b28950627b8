"""`leasehold lag` as a process, on a Kinesis server whose clock the test advances."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from leasehold.adapters.sqlite_rows import SqliteRows
from leasehold.core.model import Lease, LeaseSessionId, ShardId, StreamIdentifier, WorkerId, lease_key
from leasehold.core.position import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Position
from leasehold.fleet.reading.checkpoint_probe import FOREIGN
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.local import LocalKinesis
from tests.integration.cli_process import CliResult, run_cli

SHARDS = [ShardId(f"shardId-{number:012}") for number in range(6)]
ANNA = WorkerId("anna")
Lag = Callable[..., CliResult]


@pytest.fixture
def kinesis() -> Iterator[LocalKinesis]:
    """Run a server for this test only, because it advances the clock."""
    with LocalKinesis.in_thread(streams={"orders": len(SHARDS)}) as server:
        yield server


@pytest.fixture
def lag(kinesis: LocalKinesis, tmp_path: Path) -> Lag:
    """Run the command on the leases in `leases.sqlite`."""
    options = ("--sqlite", "leases.sqlite", "--kinesis-endpoint-url", kinesis.endpoint_url)
    return lambda *more: run_cli("lag", *options, *more, folder=tmp_path)


def put(kinesis: LocalKinesis, shard: ShardId) -> str:
    """Put one record into this shard and return its sequence number."""
    client = kinesis.client()
    (found,) = [
        each for each in client.list_shards(StreamName="orders")["Shards"] if each["ShardId"] == shard
    ]
    response = client.put_record(
        StreamName="orders",
        Data=b"x",
        PartitionKey="k",
        ExplicitHashKey=found["HashKeyRange"]["StartingHashKey"],
    )
    assert response["ShardId"] == shard
    return str(response["SequenceNumber"])


def write_leases(folder: Path, checkpoints: Mapping[ShardId, Position], stream: str | None = None) -> None:
    """Write a lease for each shard: free at a sentinel, otherwise taken by Anna and checkpointed."""

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


def measured_shards(done: CliResult) -> list[dict[str, Any]]:
    """Return the shards of the JSON output, in order."""
    assert done.code == 0, done.err
    shards: list[dict[str, Any]] = json.loads(done.out)["shards"]
    return shards


def test_the_lag_is_measured_at_the_checkpoint(kinesis: LocalKinesis, lag: Lag, tmp_path: Path) -> None:
    """The shard furthest behind comes first. Notes explain sentinels and unknown lags. Ended shards are left out."""
    old, _, alone = put(kinesis, SHARDS[0]), put(kinesis, SHARDS[1]), put(kinesis, SHARDS[2])
    put(kinesis, SHARDS[0])  # the first record that is not done
    kinesis.advance(timedelta(hours=2))
    older_than_the_tip, _ = put(kinesis, SHARDS[1]), put(kinesis, SHARDS[1])
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
    found = measured_shards(lag("--stream", "orders", "--json"))
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
    assert found[3]["note"] == "not started; starts at the tip"
    assert "only the workers know" in found[4]["note"]

    table = lag("--stream", "orders")
    assert table.code == 0
    header, first, *_, last = table.lines()
    assert header.split() == ["shard", "behind", "state", "owner", "checkpoint", "note"]
    assert re.match(rf"{SHARDS[0]}  3 h \d+ min  held   anna", first)
    assert re.fullmatch(r"5 shards; furthest behind: 3 h \d+ min", last)


def test_an_unread_shard_is_behind_by_its_oldest_record(
    kinesis: LocalKinesis, lag: Lag, tmp_path: Path
) -> None:
    """A lease at TRIM_HORIZON has everything before it."""
    put(kinesis, SHARDS[0])
    kinesis.advance(timedelta(hours=1))
    put(kinesis, SHARDS[0])
    write_leases(tmp_path, {SHARDS[0]: TRIM_HORIZON})
    (only,) = measured_shards(lag("--stream", "orders", "--json"))
    assert only["millis_behind"] // 3_600_000 == 1
    assert (only["state"], only["owner"], only["note"]) == ("free", None, "not started")


def test_trimmed_records_are_reported(kinesis: LocalKinesis, lag: Lag, tmp_path: Path) -> None:
    """If the record at the checkpoint was trimmed, later ones may be as well."""
    gone = put(kinesis, SHARDS[0])
    kinesis.trim("orders")
    put(kinesis, SHARDS[0])
    write_leases(tmp_path, {SHARDS[0]: Position(gone)})
    (only,) = measured_shards(lag("--stream", "orders", "--json"))
    assert "has been trimmed" in only["note"]


def test_trimmed_records_with_none_after_them_are_reported(
    kinesis: LocalKinesis, lag: Lag, tmp_path: Path
) -> None:
    gone, last = put(kinesis, SHARDS[0]), put(kinesis, SHARDS[1])
    put(kinesis, SHARDS[0])  # not done
    write_leases(tmp_path, {SHARDS[0]: Position(gone), SHARDS[1]: Position(last)})
    assert {each["note"] for each in measured_shards(lag("--stream", "orders", "--json"))} == {""}
    kinesis.trim("orders")
    notes = {each["note"] for each in measured_shards(lag("--stream", "orders", "--json"))}
    assert len(notes) == 1
    assert "no later record is retained" in notes.pop()


def test_an_unknown_shard_does_not_hide_the_others(kinesis: LocalKinesis, lag: Lag, tmp_path: Path) -> None:
    """A leftover lease is reported in its note."""
    write_leases(tmp_path, {SHARDS[0]: TRIM_HORIZON, ShardId("shardId-000000000077"): TRIM_HORIZON})
    known, unknown = measured_shards(lag("--stream", "orders", "--json"))
    assert known["millis_behind"] == 0
    assert (unknown["millis_behind"], unknown["note"]) == (None, "the stream has no such shard")


def test_a_foreign_checkpoint_does_not_hide_the_others(
    kinesis: LocalKinesis, lag: Lag, tmp_path: Path
) -> None:
    """Kinesis refuses a sequence number of another shard. The note says so in our words."""
    own, foreign = put(kinesis, SHARDS[0]), put(kinesis, SHARDS[1])
    write_leases(tmp_path, {SHARDS[0]: Position(own), SHARDS[1]: Position(str(int(foreign) * 7))})
    known, unknown = measured_shards(lag("--stream", "orders", "--json"))
    assert known["millis_behind"] == 0
    assert (unknown["millis_behind"], unknown["note"]) == (None, FOREIGN)


def test_leases_of_several_streams_name_their_stream(kinesis: LocalKinesis, lag: Lag, tmp_path: Path) -> None:
    """In multi-stream mode --stream is optional, and selects one stream."""
    kinesis.client().create_stream(StreamName="payments", ShardCount=1)
    write_leases(tmp_path, {SHARDS[0]: TRIM_HORIZON}, stream="orders")
    write_leases(tmp_path, {SHARDS[0]: TRIM_HORIZON}, stream="payments")
    assert [each["millis_behind"] for each in measured_shards(lag("--json"))] == [0, 0]
    (chosen,) = measured_shards(lag("--stream", "payments", "--json"))
    assert chosen["stream"] == "123456789012:payments:1700000000"


def test_a_missing_stream_is_reported_in_one_sentence(lag: Lag, tmp_path: Path) -> None:
    """Exit code 1, the name of the stream, and no traceback."""
    write_leases(tmp_path, {SHARDS[0]: TRIM_HORIZON})
    done = lag("--stream", "no-such-stream")
    assert (done.code, done.out) == (1, "")
    assert "Error: stream no-such-stream" in done.err
    assert "Traceback" not in done.err


def test_leases_without_a_stream_name_require_the_option(lag: Lag, tmp_path: Path) -> None:
    """Exit code 2, and the option to add."""
    write_leases(tmp_path, {SHARDS[0]: TRIM_HORIZON})
    done = lag()
    assert (done.code, done.out) == (2, "")
    assert "--stream NAME" in done.err


def test_an_empty_lease_table_is_no_error(lag: Lag, tmp_path: Path) -> None:
    """A fleet that has not started has no leases."""
    write_leases(tmp_path, {})
    done = lag("--stream", "orders")
    assert (done.code, done.lines()) == (0, ["0 shards; furthest behind: unknown"])


def test_a_server_that_does_not_respond_is_reported_in_one_sentence(
    kinesis: LocalKinesis, lag: Lag, tmp_path: Path
) -> None:
    """Exit code 1 and the remedy, not a table in which every lag is unknown."""
    write_leases(tmp_path, {SHARDS[0]: TRIM_HORIZON, SHARDS[1]: AT_TIMESTAMP})
    kinesis.stop()
    done = lag("--stream", "orders")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(
        "Error: no shard could be measured: stream orders, get_shard_iterator: no response"
    )
    assert "check the endpoint" in done.err
    assert len(done.err.splitlines()) == 1
