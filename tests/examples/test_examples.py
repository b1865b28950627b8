"""Every example of examples/ runs as a user runs it: as a program, on the local Kinesis server."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from leasehold.local import LocalKinesis

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 300
ORDERS = 40


@pytest.fixture
def kinesis() -> Iterator[LocalKinesis]:
    """A server with the streams of the examples: 40 orders that are JSON, and 5 returns."""
    with LocalKinesis.in_thread(streams={"orders": 2, "returns": 1}) as server:
        put(server, "orders", [json.dumps({"id": number}).encode() for number in range(ORDERS)])
        put(server, "returns", [b"return %d" % number for number in range(5)])
        yield server


def put(server: LocalKinesis, stream: str, payloads: list[bytes]) -> None:
    """Put records with different keys, so that they go to all shards."""
    entries = [{"Data": data, "PartitionKey": f"key-{number}"} for number, data in enumerate(payloads)]
    assert server.client().put_records(StreamName=stream, Records=entries)["FailedRecordCount"] == 0


def sequence_numbers(server: LocalKinesis, stream: str) -> set[str]:
    """The sequence numbers of all records in a stream."""
    client, found = server.client(), set[str]()
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        records = client.get_records(ShardIterator=iterator)["Records"]
        found |= {record["SequenceNumber"] for record in records}
    return found


def start(example: str, server: LocalKinesis, folder: Path) -> "subprocess.Popen[str]":
    """Start an example in an empty folder, with the environment that examples/README.md tells users to set."""
    return subprocess.Popen(
        [sys.executable, "-u", str(EXAMPLES / example)],
        cwd=folder,
        env=user_environment(server),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def user_environment(server: LocalKinesis) -> Mapping[str, str]:
    """The environment of a user who follows examples/README.md."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LEASEHOLD_"))}
    return kept | {
        "LEASEHOLD_KINESIS_ENDPOINT": server.endpoint_url,
        "LEASEHOLD_LEASES": "sqlite:///leases.sqlite",
    }


def run_until(example: str, server: LocalKinesis, folder: Path, *, lines: int) -> list[str]:
    """Run a worker until it has printed so many lines, then stop it with SIGTERM; it must exit with 0."""
    with start(example, server, folder) as process:
        assert process.stdout is not None
        printed = [line for _, line in zip(range(lines), process.stdout, strict=False)]
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, "".join(printed) + rest
        return printed + rest.splitlines()


def run_to_end(example: str, server: LocalKinesis, folder: Path) -> str:
    """Run a program that ends by itself; it must exit with 0."""
    with start(example, server, folder) as process:
        out, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, out
        return out


@pytest.mark.parametrize("example", ["ten_lines.py", "async_worker.py"])
def test_a_worker_handles_every_record_and_stops_cleanly(
    example: str, kinesis: LocalKinesis, tmp_path: Path
) -> None:
    """One line a record, then SIGTERM. Two handlers print at the same time, so a line may have the text of two."""
    expected = sequence_numbers(kinesis, "orders")
    printed = "".join(run_until(example, kinesis, tmp_path, lines=ORDERS))
    assert len(expected) == ORDERS
    assert {number for number in expected if number not in printed} == set()


def test_the_poison_record_becomes_a_dead_letter(kinesis: LocalKinesis, tmp_path: Path) -> None:
    """The one record that is no JSON is set aside, and all others are saved."""
    put(kinesis, "orders", [b"no JSON"])
    letters = tmp_path / "dead-letters.jsonl"
    with start("dead_letters.py", kinesis, tmp_path) as process:
        deadline = time.monotonic() + DEADLINE_S
        while not letters.exists() or not letters.read_text():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
    assert len(letters.read_text().splitlines()) == 1


def test_two_streams_in_one_consumer(kinesis: LocalKinesis, tmp_path: Path) -> None:
    """Batches of both streams arrive. Their handlers print at the same time, so a line may have the text of two."""
    with start("several_streams.py", kinesis, tmp_path) as process:
        assert process.stdout is not None
        seen: dict[str, int] = {}
        for line in process.stdout:
            for stream, count in re.findall(r"(orders|returns) shardId-\d+ (\d+) records", line):
                seen[stream] = seen.get(stream, 0) + int(count)
            if seen == {"orders": ORDERS, "returns": 5}:
                break
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
    assert seen == {"orders": ORDERS, "returns": 5}


@pytest.mark.slow
def test_spark_to_an_archive(kinesis: LocalKinesis, tmp_path: Path) -> None:
    """The archive has every record once, as an independent reader counts."""
    from pyarrow import parquet

    run_to_end("spark_archive.py", kinesis, tmp_path)
    files = [path for path in (tmp_path / "archive").rglob("*.parquet") if "_leasehold" not in str(path)]
    numbers = [value for path in files for value in parquet.read_table(path)["sequenceNumber"].to_pylist()]
    assert len(numbers) == len(set(numbers)) == ORDERS


@pytest.mark.slow
def test_spark_to_a_database(kinesis: LocalKinesis, tmp_path: Path) -> None:
    """The table has every record once."""
    run_to_end("spark_database.py", kinesis, tmp_path)
    database = sqlite3.connect(tmp_path / "orders.sqlite")
    assert database.execute("select count(*) from orders").fetchone() == (ORDERS,)
    database.close()


@pytest.mark.slow
def test_spark_counts_windows(kinesis: LocalKinesis, tmp_path: Path) -> None:
    """The watermark of a later hour completes the minutes before it."""
    kinesis.advance(timedelta(hours=1))
    put(kinesis, "orders", [b"later"] * 4)
    assert "minutes that are complete: " in run_to_end("spark_windows.py", kinesis, tmp_path)


@pytest.mark.slow
def test_the_notebook(kinesis: LocalKinesis, tmp_path: Path) -> None:
    """Its cells run one after the other, as a program."""
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    program = tmp_path / "notebook.py"
    program.write_text(
        "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"), encoding="utf-8"
    )
    out = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=user_environment(kinesis),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert out.returncode == 0, out.stdout + out.stderr
    counts = [int(line.split("|")[2]) for line in out.stdout.splitlines() if line.startswith("|shardId-")]
    assert sum(counts) == ORDERS


def test_every_example_is_listed() -> None:
    """examples/README.md has a link to each file."""
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    files = [path.name for path in EXAMPLES.iterdir() if path.is_file() and path.name != "README.md"]
    assert [name for name in files if f"]({name})" not in page] == []
