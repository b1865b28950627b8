"""`leasehold pipeline` and `leasehold demo` as processes: real Spark, the local server, leases in a file."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from leasehold.errors import ConfigError, UnavailableError
from leasehold.local import LocalKinesis
from leasehold.spark.options import source_options
from leasehold.spark.pipeline.processes import children
from leasehold.spark.pipeline.source_check import check_source
from tests.integration.cli_process import environment, run_cli, start_cli

DEADLINE_S = 400  # Spark uses a processor for ten seconds to start, and all tests share two
RECORDS = 40
CANARY = "canary-4711"
pytestmark = pytest.mark.timeout(600)
BATCH = re.compile(r"batch \d+: (\d+) records?, ")


@pytest.fixture
def stream(local_kinesis: LocalKinesis, unique_name: Callable[[str], str]) -> str:
    """Create a stream of two shards with some records."""
    name = unique_name("orders")
    client = local_kinesis.client()
    client.create_stream(StreamName=name, ShardCount=2)
    records = [
        {"Data": f"{CANARY} {number}".encode(), "PartitionKey": f"{CANARY}-{number}"}
        for number in range(RECORDS)
    ]
    assert client.put_records(StreamName=name, Records=records)["FailedRecordCount"] == 0
    return name


@pytest.fixture
def write_file(tmp_path: Path, stream: str, local_kinesis: LocalKinesis) -> Callable[[str], str]:
    """Return a function that writes a pipeline file with these tables and returns its name."""

    def write(tables: str) -> str:
        (tmp_path / "copy.toml").write_text(
            f"""
            checkpoint = "checkpoint"
            [source]
            stream = "{stream}"
            application = "copy"
            region = "us-east-1"
            endpoint = "{local_kinesis.endpoint_url}"
            leases = "sqlite:leases.sqlite"
            startingPosition = "trim_horizon"
            [spark]
            master = "local[2]"
            {tables}
            """
        )
        return "copy.toml"

    return write


@contextmanager
def _start(*arguments: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a command, and kill it at the end of the block if it has not ended."""
    with start_cli(*arguments, folder=folder, own_group=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _payloads(folder: Path) -> list[str]:
    files = sorted(folder.rglob("*.parquet"))
    return sorted(data.decode() for file in files for data in parquet.read_table(file)["data"].to_pylist())


def _states(folder: Path) -> set[str]:
    done = run_cli("leases", "--sqlite", "leases.sqlite", "--json", folder=folder)
    leases: list[dict[str, Any]] = json.loads(done.out)["leases"]
    return {lease["state"] for lease in leases}


def test_a_pipeline_with_available_now_archives_all_records(
    tmp_path: Path, write_file: Callable[[str], str]
) -> None:
    """Every record once, all leases free, a line for each batch, and no payload in the output."""
    file = write_file('[sink]\nkind = "archive"\npath = "archive"\n[trigger]\navailable_now = true')
    with _start("pipeline", file, "--no-record-classes", folder=tmp_path) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert _payloads(tmp_path / "archive") == sorted(f"{CANARY} {number}" for number in range(RECORDS))
    assert _states(tmp_path) == {"free"}
    assert sum(map(int, BATCH.findall(out))) == RECORDS, out
    assert CANARY not in out + err


def test_sigterm_stops_a_pipeline_and_frees_its_leases(
    tmp_path: Path, write_file: Callable[[str], str]
) -> None:
    """A query with the user's SQL writes Parquet. After SIGTERM to its process group it exits with 0.

    The group gets it twice, as from `timeout`. While the pipeline runs, the same pipeline cannot be started again.
    """
    file = write_file(
        """[transform]
        sql = "select data, upper(shardId) as shard from records"
        [sink]
        kind = "parquet"
        path = "out"
        partition_by = "shard"
        [trigger]
        processing_time = "1s"
        """
    )
    with _start("pipeline", file, "--log", "spark.log", folder=tmp_path) as process:
        assert process.stdout is not None
        committed = 0
        while committed < RECORDS:  # a line reports rows that Spark has committed
            line = process.stdout.readline()
            assert line, "the pipeline ended: " + (tmp_path / "spark.log").read_text()
            committed += sum(map(int, BATCH.findall(line)))
        assert _states(tmp_path) == {"held"}
        again = run_cli("pipeline", file, folder=tmp_path)
        assert again.code == 1
        assert f"another run of this pipeline uses it: process {process.pid} on" in again.err
        for _ in range(2):
            os.killpg(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err + (tmp_path / "spark.log").read_text()
    assert "stopping; a second Ctrl-C or SIGTERM ends it at once" in out
    assert "its leases are free" in out
    assert "Traceback" not in err + (tmp_path / "spark.log").read_text()
    assert _states(tmp_path) == {"free"}
    assert _payloads(tmp_path / "out") == sorted(f"{CANARY} {number}" for number in range(RECORDS))
    assert {each.name for each in (tmp_path / "out").glob("shard=*")} == {
        "shard=SHARDID-000000000000",
        "shard=SHARDID-000000000001",
    }


def test_ctrl_c_interrupts_the_start_of_spark(tmp_path: Path, write_file: Callable[[str], str]) -> None:
    """At once, with exit code 0, and without a process or an unfinished file that is left."""
    file = write_file('[sink]\nkind = "console"')
    with _start("pipeline", file, "--record-classes", folder=tmp_path) as process:
        assert process.stdout is not None
        while "starting Spark" not in process.stdout.readline():
            pass
        until = time.monotonic() + DEADLINE_S
        while not children(process.pid) and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert out.splitlines()[-1] == "stopped before the query has started"
    assert "Traceback" not in err
    assert _left_running(tmp_path) == []
    assert list((tmp_path / ".cache" / "leasehold").glob("*.part")) == []


def test_an_invalid_file_is_refused_before_spark_starts(
    tmp_path: Path, write_file: Callable[[str], str]
) -> None:
    """One sentence and exit code 1."""
    done = run_cli("pipeline", write_file('[sink]\nkind = "archive"\npth = "x"'), folder=tmp_path)
    assert done.code == 1
    # A busy machine takes more than five seconds, and then the line is repeated.
    assert all(line.startswith("loading the libraries of Spark") for line in done.out.splitlines())
    assert done.err.startswith("Error: pipeline file copy.toml: ")
    assert "did you mean path?" in done.err


def test_a_stream_that_does_not_exist_is_refused_before_spark_starts(
    tmp_path: Path, write_file: Callable[[str], str], stream: str
) -> None:
    """The query would wait for it, and say so only in Spark's log."""
    file = write_file('[sink]\nkind = "console"')
    (tmp_path / file).write_text((tmp_path / file).read_text().replace(stream, "nosuch"))
    done = run_cli("pipeline", file, folder=tmp_path)
    assert done.code == 1
    assert "starting Spark" not in done.out
    assert done.err == (
        "Error: stream nosuch does not exist (us-east-1): create it, or check its name, the region and the endpoint\n"
    )


def test_an_archive_that_cannot_be_opened_is_refused_before_spark_starts(
    tmp_path: Path, write_file: Callable[[str], str]
) -> None:
    """Its folder cannot be created below a file. Each task of Spark would fail four times."""
    (tmp_path / "file").touch()
    done = run_cli("pipeline", write_file('[sink]\nkind = "archive"\npath = "file/orders"'), folder=tmp_path)
    assert done.code == 1
    assert "starting Spark" not in done.out
    assert done.err.startswith("Error: url='file/orders': ")
    assert "or choose another one" in done.err


def test_a_file_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, write_file: Callable[[str], str]
) -> None:
    file = write_file('[sink]\nkind = "console"')
    done = run_cli("pipeline", file, "--log", f"{file}/spark.log", folder=tmp_path)
    assert done.code == 1
    assert done.err.startswith(f"Error: {file}/spark.log: Not a directory: check that the folder exists")


def test_the_check_of_a_source(
    local_kinesis: LocalKinesis, stream: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A missing region is an error. A server that does not respond may do so later."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    on_file = {"streamName": stream, "applicationName": "copy", "leases": "sqlite:leases.sqlite"}
    assert check_source(source_options({**on_file, "endpointUrl": local_kinesis.endpoint_url})) is None
    refused = check_source(source_options({**on_file, "endpointUrl": "http://127.0.0.1:1"}))
    assert isinstance(refused, UnavailableError)
    assert "for a server on this machine, whether it runs" in str(refused)
    with pytest.raises(ConfigError, match="no region is set for kinesis"):
        check_source(source_options(on_file))
    with pytest.raises(ConfigError, match="no region is set for dynamodb"):
        check_source(
            source_options({**on_file, "endpointUrl": local_kinesis.endpoint_url, "leases": "dynamodb"})
        )


def test_a_failing_query_ends_the_pipeline_with_its_reason(
    tmp_path: Path, write_file: Callable[[str], str]
) -> None:
    """Spark's message for invalid SQL, without a stack trace, and exit code 1."""
    file = write_file('[transform]\nsql = "select nonsense from records"\n[sink]\nkind = "console"')
    with _start("pipeline", file, "--log", "spark.log", folder=tmp_path) as process:
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "nonsense" in err
    assert "spark.log" in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_accounts_for_every_record(tmp_path: Path) -> None:
    """No record is lost or duplicated after a reshard and a kill -9, and no process is left running."""
    command = [sys.executable, "-m", "leasehold.cli", "demo", "--records", "3000", "--folder", "demo"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(tmp_path),
        check=False,
        timeout=840,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "produced=3000 archived=3000 lost=0 duplicated=0"
    assert any("kill -9" in line for line in lines)
    assert _left_running(tmp_path) == []


def _left_running(home: Path) -> list[str]:
    """Return the processes that were started with this home. Workers of a killed JVM take a moment to end."""
    until = time.monotonic() + DEADLINE_S
    while (found := [each.name for each in Path("/proc").glob("[0-9]*") if _has_home(each, home)]) != []:
        if time.monotonic() > until:
            break
        time.sleep(0.2)
    return found


def _has_home(process: Path, home: Path) -> bool:
    try:
        return f"HOME={home}".encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False  # the process has ended meanwhile
