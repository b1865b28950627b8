"""`leasehold archive` on a folder, with our own Kinesis server."""

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


def write_archive(folder: Path, numbers: list[str]) -> None:
    records = tuple(UserRecord(b"x", "key", number, 60_000) for number in numbers)
    asyncio.run(
        Archive.open(ArchiveSettings(url=str(folder))).write(
            [PinnedRange(SHARD, "one", to_archive_table(records, "orders", SHARD))]
        )
    )


def run_archive(*arguments: object) -> Result:
    return CliRunner().invoke(leasehold, ["archive", *map(str, arguments)])


def test_a_folder_without_an_archive_is_not_verified(tmp_path: Path) -> None:
    """A wrong path must not look like an archive without problems."""
    result = run_archive("verify", tmp_path)
    assert (result.exit_code, result.output) == (
        1,
        f"Error: {tmp_path} has no object of an archive: check the URL and --prefix\n",
    )
    assert (
        "has no object of an archive below prefix 'a'"
        in run_archive("list", tmp_path, "--prefix", "a").output
    )


def test_a_complete_archive(tmp_path: Path) -> None:
    """Tables, JSON, exit code 0, and a note that gaps are unknown."""
    write_archive(tmp_path, ["1", "2"])
    result = run_archive("verify", tmp_path)
    assert result.exit_code == 0, result.output
    assert "2 records: overlaps=0, duplicates=0, damages=0, strays=0\ngaps: unknown" in result.output
    shards = json.loads(run_archive("verify", tmp_path, "--json").output)["shards"]
    assert shards == [{"shard": SHARD, "objects": 1, "records": 2, "first": "1", "last": "2"}]
    listed = json.loads(run_archive("list", tmp_path, "--json").output)["shards"]
    assert [(each["shard"], each["objects"], each["from"]) for each in listed] == [
        (SHARD, 1, "1970/01/01/00/01")
    ]
    assert SHARD in run_archive("list", tmp_path).output


def test_a_duplicate_record_gives_exit_code_1(tmp_path: Path) -> None:
    """The problem names the kind, the shard and the object."""
    write_archive(tmp_path / "a", ["1", "2"])
    write_archive(tmp_path / "b", ["2", "3"])
    for file in (tmp_path / "b").rglob("*.parquet"):
        file.rename(tmp_path / "a" / file.relative_to(tmp_path / "b"))
    result = run_archive("verify", tmp_path / "a")
    assert result.exit_code == 1
    assert f"duplicate: {SHARD}: 1970/01/01/00/01/" in result.output
    kinds = [
        each["kind"]
        for each in json.loads(run_archive("verify", tmp_path / "a", "--json").output)["problems"]
    ]
    assert kinds == ["overlap", "duplicate"]


def test_a_stray_file_gives_exit_code_1(tmp_path: Path) -> None:
    """A file that readers ignore, such as a staged file, is counted, and is no problem."""
    write_archive(tmp_path, ["1", "2"])
    (tmp_path / "_leasehold_staging" / "left.tmp").write_bytes(b"half")
    result = run_archive("verify", tmp_path)
    assert (result.exit_code, "; 1 unrecognized object\n" in result.output) == (0, True)
    (file,) = tmp_path.rglob("*.parquet")
    file.with_name(f"{file.name}#1").write_bytes(b"half")
    result = run_archive("verify", tmp_path)
    assert result.exit_code == 1
    assert f"stray: {SHARD}: {file.relative_to(tmp_path)}#1: " in result.output
    assert "strays=1; 1 unrecognized object\n" in result.output
    assert json.loads(run_archive("list", tmp_path, "--json").output)["unrecognized_objects"] == 2


def test_a_gap_is_found_by_comparing_with_the_stream(
    tmp_path: Path, local_kinesis: LocalKinesis, unique_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of the stream that the archive does not contain is reported with its position."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    stream, client = unique_name("orders"), aws_client("kinesis", local_kinesis.endpoint_url)
    client.create_stream(StreamName=stream, ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    numbers = [
        client.put_record(StreamName=stream, Data=b"x", PartitionKey="key")["SequenceNumber"]
        for _ in range(4)
    ]
    write_archive(tmp_path, [numbers[0], numbers[1], numbers[3]])
    stream_options = ("--stream", stream, "--kinesis-endpoint-url", local_kinesis.endpoint_url)
    result = run_archive("verify", tmp_path, *stream_options)
    assert result.exit_code == 1, result.output
    assert f"gap: {SHARD}: {numbers[2]}: 1 records" in result.output
    assert "gaps=1" in result.output


def test_wrong_arguments_are_reported_in_one_sentence(tmp_path: Path) -> None:
    """A missing folder is not created. Leases without a stream are refused."""
    missing = tmp_path / "typo"
    result = run_archive("verify", missing)
    assert result.exit_code == 1
    assert "URL=" in result.output
    assert not missing.exists()
    assert "add --stream NAME" in run_archive("verify", tmp_path, "--application", "x").output


def test_an_archive_in_s3(ministack: Server, unique_name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive below a prefix is written, found again by another process, and verified by its URL."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    bucket = unique_name("archive")
    ministack.client("s3").create_bucket(Bucket=bucket)
    settings = ArchiveSettings(url=f"s3://{bucket}/of", prefix="orders", s3_endpoint=ministack.url)
    rows = to_archive_table(
        tuple(UserRecord(b"x", "key", str(number), 60_000) for number in (1, 2)), "orders", SHARD
    )

    async def write_three_times() -> tuple[WriteReport, ...]:
        first, second = Archive.open(settings), Archive.open(settings)
        return (
            await first.write([PinnedRange(SHARD, "one", rows)]),
            await first.write([PinnedRange(SHARD, "one", rows)]),
            await second.write([PinnedRange(SHARD, "two", rows)]),
        )

    created, again, elsewhere = asyncio.run(write_three_times())
    assert (created.objects, again.already_there, elsewhere.dropped_rows) == (1, 1, 2)
    location = (settings.url, "--prefix", "orders", "--s3-endpoint-url", ministack.url)
    result = run_archive("verify", *location)
    assert result.exit_code == 0, result.output
    assert "2 records: overlaps=0, duplicates=0, damages=0, strays=0" in result.output
