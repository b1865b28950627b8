"""`leasehold archive` on a folder, beside our own Kinesis server."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasehold.archive import Archive, ArchiveSettings, WriteReport
from leasehold.archive.rows import PinnedRange
from leasehold.cli.command import leasehold
from leasehold.core.model import ShardId
from leasehold.core.record import UserRecord
from leasehold.local import LocalKinesis
from leasehold.worker.archive_handler import to_archive_table
from tests.servers import Server, aws_client

SHARD = ShardId("shardId-000000000000")


def archived(folder: Path, numbers: list[str]) -> None:
    records = tuple(UserRecord(b"x", "key", number, 60_000) for number in numbers)
    asyncio.run(
        Archive.open(ArchiveSettings(url=str(folder))).write(
            [PinnedRange(SHARD, "one", to_archive_table(records, "orders", SHARD))]
        )
    )


def command(*arguments: object) -> Result:
    return CliRunner().invoke(leasehold, ["archive", *map(str, arguments)])


def test_a_sound_archive(tmp_path: Path) -> None:
    """Tables for people, JSON for programs, exit code 0; and the word that gaps are not known."""
    archived(tmp_path, ["1", "2"])
    result = command("verify", tmp_path)
    assert result.exit_code == 0, result.output
    assert "2 records: overlaps=0, duplicates=0, damages=0\ngaps: unknown" in result.output
    shards = json.loads(command("verify", tmp_path, "--json").output)["shards"]
    assert shards == [{"shard": SHARD, "objects": 1, "records": 2, "first": "1", "last": "2"}]
    listed = json.loads(command("list", tmp_path, "--json").output)["shards"]
    assert [(each["shard"], each["objects"], each["from"]) for each in listed] == [
        (SHARD, 1, "1970/01/01/00/01")
    ]
    assert SHARD in command("list", tmp_path).output


def test_a_doubled_record_ends_with_exit_code_1(tmp_path: Path) -> None:
    """The finding names the kind, the shard and the object."""
    archived(tmp_path / "a", ["1", "2"])
    archived(tmp_path / "b", ["2", "3"])
    for file in (tmp_path / "b").rglob("*.parquet"):
        file.rename(tmp_path / "a" / file.relative_to(tmp_path / "b"))
    result = command("verify", tmp_path / "a")
    assert result.exit_code == 1
    assert f"duplicate: {SHARD}: 1970/01/01/00/01/" in result.output
    kinds = [
        each["kind"] for each in json.loads(command("verify", tmp_path / "a", "--json").output)["problems"]
    ]
    assert kinds == ["overlap", "duplicate"]


def test_a_gap_shows_beside_the_stream(
    tmp_path: Path, local_kinesis: LocalKinesis, unique_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that the stream holds and the archive does not is found, with its position."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    stream, client = unique_name("orders"), aws_client("kinesis", local_kinesis.endpoint_url)
    client.create_stream(StreamName=stream, ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    numbers = [
        client.put_record(StreamName=stream, Data=b"x", PartitionKey="key")["SequenceNumber"]
        for _ in range(4)
    ]
    archived(tmp_path, [numbers[0], numbers[1], numbers[3]])
    beside = ("--stream", stream, "--kinesis-endpoint-url", local_kinesis.endpoint_url)
    result = command("verify", tmp_path, *beside)
    assert result.exit_code == 1, result.output
    assert f"gap: {SHARD}: {numbers[2]}: 1 records" in result.output
    assert "gaps=1" in result.output


def test_mistakes_are_told_in_a_sentence(tmp_path: Path) -> None:
    """A folder that is not there is not made; leases without a stream are of no use."""
    missing = tmp_path / "typo"
    result = command("verify", missing)
    assert result.exit_code == 1
    assert "URL=" in result.output
    assert not missing.exists()
    assert "add --stream NAME" in command("verify", tmp_path, "--application", "x").output


def test_an_archive_in_s3(ministack: Server, unique_name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written below a prefix, found there again by another process, and checked by its URL."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    bucket = unique_name("archive")
    ministack.client("s3").create_bucket(Bucket=bucket)
    settings = ArchiveSettings(url=f"s3://{bucket}/of", prefix="orders", s3_endpoint=ministack.url)
    rows = to_archive_table(
        tuple(UserRecord(b"x", "key", str(number), 60_000) for number in (1, 2)), "orders", SHARD
    )

    async def story() -> tuple[WriteReport, ...]:
        first, second = Archive.open(settings), Archive.open(settings)
        return (
            await first.write([PinnedRange(SHARD, "one", rows)]),
            await first.write([PinnedRange(SHARD, "one", rows)]),
            await second.write([PinnedRange(SHARD, "two", rows)]),
        )

    created, again, elsewhere = asyncio.run(story())
    assert (created.objects, again.already_there, elsewhere.dropped_rows) == (1, 1, 2)
    place = (settings.url, "--prefix", "orders", "--s3-endpoint-url", ministack.url)
    result = command("verify", *place)
    assert result.exit_code == 0, result.output
    assert "2 records: overlaps=0, duplicates=0, damages=0" in result.output
