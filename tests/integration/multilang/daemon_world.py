"""A stream on the local server, `leasehold multilang` as a process, and the children that it starts."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leasehold.config.connection import ConnectionSettings
from leasehold.core.model import Lease
from leasehold.errors import NotFoundError
from leasehold.local import LocalKinesis
from leasehold.wiring import open_lease_table
from tests.integration.cli_process import environment
from tests.servers.install import SERVERS

DEADLINE_S = 120
APPLICATION = "billing"
STARTED = re.compile(r"child shard=\S+ pid=(\d+) started")
PROGRAMS = Path(__file__).parent
KCLPY = next((SERVERS / "kclpy" / "lib").glob("python3*/site-packages"), None)


@dataclass
class Daemon:
    """A running `leasehold multilang`, and its log so far."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self.lines.extend, args=(self.process.stderr,), daemon=True)
        self._reader.start()

    def log(self) -> str:
        """Return what was logged so far."""
        return "".join(list(self.lines))

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until the condition is true. Fail if the daemon ends or the deadline passes."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.process.poll() is None, f"the daemon has ended: {self.log()}"
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code

    def children(self) -> list[int]:
        """Return the process ids of the children that were started."""
        return [int(found[1]) for found in STARTED.finditer(self.log())]


@dataclass
class DaemonWorld:
    """A stream, a folder with a properties file, and the records that children have handled."""

    kinesis: LocalKinesis
    stream: str
    folder: Path
    properties: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client = self.kinesis.client()
        self.client.create_stream(StreamName=self.stream, ShardCount=2)

    def put(self, *data: str) -> None:
        """Put records whose partition key is the data."""
        entries = [{"Data": each.encode(), "PartitionKey": each} for each in data]
        assert self.client.put_records(StreamName=self.stream, Records=entries)["FailedRecordCount"] == 0

    def split(self) -> None:
        """Split the first shard."""
        self.client.split_shard(
            StreamName=self.stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
        )

    def write_properties(self, **properties: object) -> Path:
        """Write the properties file, with short times for tests."""
        given = {
            "applicationName": APPLICATION,
            "streamName": self.stream,
            "initialPositionInStream": "TRIM_HORIZON",
            "AwsCredentialsProvider": "DefaultCredentialsProvider",
            "regionName": "us-east-1",
            "kinesisEndpoint": self.kinesis.endpoint_url,
            "retrievalMode": "POLLING",
            "idleTimeBetweenReadsInMillis": 200,
            "metricsLevel": "NONE",
            **properties,
        }
        path = self.folder / "app.properties"
        path.write_text("".join(f"{key} = {value}\n" for key, value in given.items()))
        return path

    @contextmanager
    def daemon(self, *options: str, **properties: object) -> Iterator[Daemon]:
        """Run the daemon, and kill it at the end."""
        self.write_properties(**properties)
        with self.command("multilang", "app.properties", *options) as running:
            yield running

    @contextmanager
    def command(self, *arguments: str) -> Iterator[Daemon]:
        """Run a command, and kill it at the end."""
        process = subprocess.Popen(
            [sys.executable, "-m", "leasehold.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**environment(self.folder), **self.variables()},
        )
        with process:
            try:
                yield Daemon(process)
            finally:
                process.kill()

    def variables(self) -> Mapping[str, str]:
        """Return the environment of the daemon and of its children."""
        return {
            "LEASEHOLD_LEASES": f"sqlite:///{self.folder}/leases.sqlite",
            "LEASEHOLD_COOLDOWN_AFTER_FAILURE": "500ms",
            "PYTHONPATH": str(KCLPY),
            "PYTHONUNBUFFERED": "1",
            "HANDLED": str(self.folder / "handled"),
        }

    def handled(self) -> list[dict[str, Any]]:
        """Return what children have recorded: pid, shard, sequence number and data of each record, in order."""
        path = self.folder / "handled"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def has_handled(self, *data: str) -> bool:
        """Return whether each of these records was handled at least once."""
        return set(data) <= {each["data"] for each in self.handled()}

    def leases(self) -> dict[str, Lease]:
        """Return the leases by shard."""

        async def read() -> dict[str, Lease]:
            table = open_lease_table(
                ConnectionSettings(leases=f"sqlite:///{self.folder}/leases.sqlite"), APPLICATION
            )
            try:
                return {str(lease.shard_id): lease for lease in (await table.list()).leases}
            except NotFoundError:  # the daemon has not created it yet
                return {}
            finally:
                await table.close()

        return asyncio.run(read())

    def check_order(self) -> None:
        """Each child got the records of its shard in order, each once, and left out none after the end of the last."""
        by_child: dict[tuple[str, int], list[int]] = {}
        for each in self.handled():
            by_child.setdefault((each["shard"], each["pid"]), []).append(int(each["number"]))
        assert by_child
        all_numbers: dict[str, set[int]] = {}
        for (shard, _), numbers in by_child.items():
            all_numbers.setdefault(shard, set()).update(numbers)
        last: dict[str, int] = {}
        for (shard, pid), numbers in by_child.items():
            assert numbers == sorted(set(numbers))
            # No record between the end of the last child and the first record of this one.
            skipped = [each for each in all_numbers[shard] if last.get(shard, 0) < each < numbers[0]]
            assert not skipped, f"child {pid} of {shard} began after {skipped}"
            last[shard] = max(last.get(shard, 0), numbers[-1])


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
