"""`leasehold archive` on a folder, with our own Kinesis server."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from leasehold.archive import Archive, ArchiveSettings, WriteReport
from leasehold.archive.routing import open_writer
from leasehold.archive.rows import PinnedRange
from leasehold.cli.command import leasehold
from leasehold.core.model import ShardId
from leasehold.core.record import UserRecord
from leasehold.errors import ServiceError
from leasehold.local import LocalKinesis
from leasehold.worker.archive_handler import to_archive_table
from tests.servers import Server, aws_client

SHARD = ShardId("shardId-000000000000")


def write_archive(folder: Path, numbers: list[str], stream: str = "orders") -> None:
    records = tuple(UserRecord(b"x", "key", number, 60_000) for number in numbers)
    asyncio.run(
        Archive.open(ArchiveSettings(url=str(folder))).write(
            [PinnedRange(SHARD, "one", to_archive_table(records, stream, SHARD))]
        )
    )


def make_older(folder: Path, pattern: str, *, days: int) -> None:
    """Change the times at which the files were stored."""
    for path in folder.rglob(pattern):
        then = path.stat().st_mtime - days * 86_400
        os.utime(path, (then, then))


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


def test_a_folder_without_an_archive_is_not_compacted(tmp_path: Path) -> None:
    """Nothing is created there, not even the lock."""
    write_archive(tmp_path / "orders", ["1"])
    before = sorted(tmp_path.rglob("*"))
    sentence = f"Error: {tmp_path} has no object of an archive: check the URL and --prefix\n"
    for options in ((), ("--dry-run",)):
        result = run_archive("compact", tmp_path, *options)
        assert (result.exit_code, result.output) == (1, sentence)
    assert sorted(tmp_path.rglob("*")) == before
    assert run_archive("compact", tmp_path, "--prefix", "orders").exit_code == 0


def test_a_complete_archive(tmp_path: Path) -> None:
    """Tables, JSON, exit code 0, and a note that gaps are unknown."""
    write_archive(tmp_path, ["1", "2"])
    result = run_archive("verify", tmp_path)
    assert result.exit_code == 0, result.output
    assert (
        "2 records: overlaps=0, duplicates=0, damages=0, strays=0, omissions=0\ngaps: unknown"
        in result.output
    )
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
    assert "strays=1, omissions=0; 1 unrecognized object\n" in result.output
    assert json.loads(run_archive("list", tmp_path, "--json").output)["unrecognized_objects"] == 2


def test_compaction_of_a_folder(tmp_path: Path) -> None:
    """A plan, a run that merges, a run that deletes, and a verification of the result."""
    for number in range(20):
        write_archive(tmp_path, [str(number)])
    assert json.loads(run_archive("compact", tmp_path, "--dry-run", "--json").output)["would_merge"] == 0
    make_older(tmp_path, "*.parquet", days=2)
    planned = json.loads(run_archive("compact", tmp_path, "--dry-run", "--json").output)
    assert (planned["would_merge"], planned["would_create"], planned["would_delete"]) == (4, 1, 0)
    result = run_archive("compact", tmp_path)
    assert result.exit_code == 0, result.output
    assert "merged 4 objects into 1" in result.output
    assert "20 records: overlaps=0" in run_archive("verify", tmp_path).output
    assert "4 replaced ones are kept" in run_archive("compact", tmp_path, "--dry-run").output
    assert "at least one minute" in run_archive("compact", tmp_path, "--delete-after", "0s").output
    make_older(tmp_path, "*.since-*", days=1)
    done = json.loads(run_archive("compact", tmp_path, "--json").output)
    assert (done["merged"], done["deleted"], done["skipped"]) == (0, 4, [])
    assert "20 records: overlaps=0, duplicates=0, damages=0" in run_archive("verify", tmp_path).output
    assert len(list(tmp_path.rglob("*.parquet"))) == 17
    assert "expected a size" in run_archive("compact", tmp_path, "--target-size", "big").output


def test_a_gap_is_found_by_comparing_with_the_stream(
    tmp_path: Path, local_kinesis: LocalKinesis, unique_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of the stream that the archive does not contain is reported with its position."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    stream, client = unique_name("orders"), aws_client("kinesis", local_kinesis.endpoint_url)
    client.create_stream(StreamName=stream, ShardCount=2)
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    numbers = [
        client.put_record(StreamName=stream, Data=b"x", PartitionKey="key", ExplicitHashKey="0")[
            "SequenceNumber"
        ]
        for _ in range(4)
    ]
    write_archive(tmp_path, [numbers[0], numbers[1], numbers[3]], stream)
    stream_options = ("--stream", stream, "--kinesis-endpoint-url", local_kinesis.endpoint_url)
    result = run_archive("verify", tmp_path, *stream_options)
    assert result.exit_code == 1, result.output
    assert f"gap: {SHARD}: {numbers[2]}: 1 records" in result.output
    assert "gaps=1" in result.output
    assert (
        "gaps: compared with the stream up to the last archived record of each shard; give the"
        in result.output
    )
    # The other shard has no object, so nothing says which of its records are expected.
    other = "shardId-000000000001"
    assert f"gaps: unknown for 1 shard of the stream without an object ({other}); give the" in result.output
    assert json.loads(run_archive("verify", tmp_path, *stream_options, "--json").output)[
        "unchecked_shards"
    ] == [other]


def test_the_archive_of_another_stream_is_not_compared(tmp_path: Path) -> None:
    """Shards of two streams have the same ids, so all records of the archive would look right."""
    write_archive(tmp_path, ["1", "2"])
    result = run_archive("verify", tmp_path, "--stream", "clicks")
    assert (result.exit_code, result.output) == (
        1,
        "Error: the archive holds stream 'orders', not 'clicks': name the archive of this stream, and its prefix\n",
    )


def test_an_object_of_another_stream_is_damage(tmp_path: Path) -> None:
    """Nothing else shows that it is not of this archive: the ids of shards are the same."""
    write_archive(tmp_path / "orders", ["1", "2"])
    write_archive(tmp_path / "clicks", ["3", "4"], "clicks")
    (file,) = (tmp_path / "clicks").rglob("*.parquet")
    name = file.relative_to(tmp_path / "clicks")
    file.rename(tmp_path / "orders" / name)
    result = run_archive("verify", tmp_path / "orders")
    assert result.exit_code == 1
    assert f"damage: {SHARD}: {name}: it holds records of another stream\n" in result.output


def test_an_archive_of_some_records_is_not_compared_with_the_stream(tmp_path: Path) -> None:
    """The failed records of the stream are below another prefix. They would look like gaps."""
    settings = ArchiveSettings(url=str(tmp_path), error_column="problem", error_prefix="failed")
    records = tuple(UserRecord(b"x", "key", str(number), 60_000) for number in (1, 2))
    rows = to_archive_table(records, "orders", SHARD).append_column("problem", pa.array(["bad", None]))
    asyncio.run(open_writer(settings, Archive.open).write([PinnedRange(SHARD, "one", rows)]))
    for prefix in ((), ("--prefix", "failed")):
        result = run_archive("verify", tmp_path, *prefix, "--stream", "orders")
        assert result.exit_code == 1
        assert "failed ones below prefix 'failed'), so it cannot be used with --stream" in result.output
        result = run_archive("verify", tmp_path, *prefix)
        assert "1 record: overlaps=0, duplicates=0, damages=0" in result.output
    assert "unrecognized" not in result.output


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
    assert "2 records: overlaps=0, duplicates=0, damages=0, strays=0, omissions=0" in result.output


@pytest.mark.parametrize("command", ["verify", "compact", "read", "list"])
def test_a_bucket_that_does_not_exist_is_reported(
    command: str, ministack: Server, unique_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no reason to try again. Writers and readers in a program get the same error."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    url = f"s3://{unique_name('absent')}/of"
    result = run_archive(command, url, "--s3-endpoint-url", ministack.url)
    assert result.exit_code == 1
    assert f"{url}: the bucket or container does not exist; create it, or check the URL" in result.output
    archive = Archive.open(ArchiveSettings(url=url, s3_endpoint=ministack.url))
    rows = to_archive_table((UserRecord(b"x", "key", "1", 60_000),), "orders", SHARD)
    with pytest.raises(ServiceError, match="the bucket or container does not exist"):
        asyncio.run(archive.write([PinnedRange(SHARD, "one", rows)]))


# -- read ------------------------------------------------------------------------------------------------------


def write_payloads(folder: Path, payloads: list[bytes], **settings: Any) -> None:
    records = tuple(UserRecord(data, "key", str(n), 60_000 * (1 + n)) for n, data in enumerate(payloads))
    chosen = ArchiveSettings(url=str(folder), **settings)
    pinned = PinnedRange(SHARD, "one", to_archive_table(records, "orders", SHARD))
    asyncio.run(Archive.open(chosen).write([pinned]))


def test_records_are_printed_as_json_lines(tmp_path: Path) -> None:
    """Payloads are base64, text, or all that is printed. Times and shards select, and a limit ends the command."""
    write_payloads(tmp_path, [b"zero", b"\xff", "zw\u009bei".encode()], format="avro")
    rows = [json.loads(line) for line in run_archive("read", tmp_path).output.splitlines()]
    assert [row["data"] for row in rows] == ["emVybw==", "/w==", "enfCm2Vp"]
    assert rows[1]["approximateArrivalTimestamp"] == "1970-01-01T00:02:00+00:00"
    assert (rows[1]["shardId"], rows[1]["sequenceNumber"], rows[1]["partitionKey"]) == (SHARD, "1", "key")
    text = run_archive("read", tmp_path, "--text").output
    assert [json.loads(line)["data"] for line in text.splitlines()] == ["zero", None, "zw\u009bei"]
    assert [json.loads(line).get("dataBase64") for line in text.splitlines()] == [None, "/w==", None]
    assert "\u009b" not in text
    raw = run_archive("read", tmp_path, "--raw").stdout_bytes
    assert raw == b"zero\n\xff\nzw\xc2\x9bei\n"
    assert run_archive("read", tmp_path, "--raw", "--limit", 1).output == "zero\n"
    late = run_archive("read", tmp_path, "--raw", "--start", "1970-01-01T00:03:00Z")
    assert late.stdout_bytes == "zw\u009bei\n".encode()
    early = run_archive("read", tmp_path, "--raw", "--end", "1970-01-01T00:02:00Z", "--shard", SHARD)
    assert (early.exit_code, early.output) == (0, "zero\n")


def test_what_cannot_be_read_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    """A selection without records is none; a wrong place, a wrong time and payloads without positions are."""
    write_payloads(tmp_path / "good", [b"zero"])
    nothing = run_archive("read", tmp_path / "good", "--shard", "shardId-000000000007")
    assert (nothing.exit_code, nothing.output) == (0, "")
    write_payloads(tmp_path / "raw", [b"zero"], format="raw")
    (tmp_path / "empty").mkdir()
    for arguments, sentence in (
        (("raw",), "payloads without their positions"),
        (("empty",), "has no object of an archive: check the URL and --prefix"),
        (("good", "--prefix", "x"), "has no object of an archive below prefix 'x'"),
    ):
        result = run_archive("read", tmp_path / arguments[0], *arguments[1:])
        assert (result.exit_code, sentence in result.output) == (1, True), result.output
    for options, sentence in (
        (("--raw", "--text"), "exclude each other"),
        (("--start", "today"), "--start='today'"),
    ):
        result = run_archive("read", tmp_path / "good", *options)
        assert (result.exit_code, sentence in result.output) == (2, True), result.output


def test_a_reader_that_leaves_ends_the_command_quietly(tmp_path: Path) -> None:
    """As in `leasehold archive read ... | head -1`."""
    write_payloads(tmp_path, [b"x" * 100_000 for _ in range(40)])
    command = f"{sys.executable} -m leasehold archive read {tmp_path} | head -c 10; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout[:2], done.stdout[10:], done.stderr) == ('{"', "0\n", "")
