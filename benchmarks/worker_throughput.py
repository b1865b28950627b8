"""How much processor time does a worker need for a gigabyte of records, compared with other consumers?

    python -m benchmarks worker [--java] [--repeats 2] [--only worker-1000 ...]

A backlog on four shards of our Kinesis server is read to its end, by one contestant after the other, in turns. The
processor time of a contestant is that of its process and its children from the start on. Each reads a short and a long
backlog; the difference of the two, divided by the difference in size, is the net processor time: without the start of
the process, and without what runs idle. The servers are not counted.

The handlers add up the sizes of the data. Our worker and the KCL keep leases and checkpoint; the loops do not. Leases
are in DynamoDB Local with `--java`, otherwise in SQLite.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.backlogs import SHARDS, Backlog, fill_backlog
from benchmarks.harness import Plan, Result, interleaved
from benchmarks.processes import tree_cpu_s
from leasehold.local import LocalKinesis

CONTESTANTS = Path(__file__).parent / "contestants"
PEERS_PYTHON = Path(__file__).parent.parent / ".venv-bench" / "bin" / "python"
RECORDS, ARROW = "leasehold, records", "leasehold, Arrow"
PURE = " (pure Python)"
IN_JSON = " (JSON)"
FLOOR = "parse floor"
JAVA, KCLPY = "Java KCL 3.5.1", "kclpy (Java daemon)"
DEADLINE_S = 300
KCL = "3.5.1"
# A short run is unfair to Java, whose compiler works meanwhile; so with Java both runs are longer.
JAVA_TIMES = 2
LIMIT = "reading the response and decoding it; with small records, objects"


@dataclass(frozen=True)
class Workload:
    """A backlog: the size of its user records, and how many the short and the long stream have."""

    record_bytes: int
    short: int
    long: int
    aggregated: bool = False

    def repeats(self, plan: Plan) -> int:
        """Fewer for the cases that differ least, so that a standard run takes a quarter of an hour."""
        is_main = self in WORKLOADS[:2]
        return 1 if plan.is_quick else max(1, plan.repeats if is_main else plan.repeats - 1)

    @property
    def key(self) -> str:
        """The key of its comparison."""
        return f"worker-{self.record_bytes}" + ("-aggregated" if self.aggregated else "")


WORKLOADS = (
    Workload(1_000, 10_000, 160_000),
    Workload(100, 25_000, 400_000),
    Workload(10_000, 1_000, 8_000),
    Workload(1_000, 10_000, 120_000, aggregated=True),
    Workload(100, 25_000, 400_000, aggregated=True),
    Workload(10_000, 1_000, 8_000, aggregated=True),
)
COMPARISONS = tuple(workload.key for workload in WORKLOADS)
NOT_MEASURED = (
    "leasehold-native is not installed, so only pure Python is measured: "
    "`make setup` builds it, with a Rust toolchain"
)


@dataclass(frozen=True)
class Bench:
    """The servers. Without `dynamodb`, leases are in SQLite."""

    kinesis: LocalKinesis
    dynamodb: str | None
    classes: Path | None  # of the member on the Java KCL


def contestants(bench: Bench) -> dict[str, Callable[[dict[str, Any]], list[str]]]:
    """Every contestant that can run here, with its command."""
    found: dict[str, Callable[[dict[str, Any]], list[str]]] = {}
    if importlib.util.find_spec("leasehold_native") is not None:
        found |= {RECORDS: _ours("records"), ARROW: _ours("arrow")}
        found[f"{RECORDS}{IN_JSON}"] = _ours("records", protocol="json")
    found |= {
        f"{RECORDS}{PURE}": _ours("records", is_pure=True),
        f"{ARROW}{PURE}": _ours("arrow", is_pure=True),
    }
    floor = [sys.executable, str(CONTESTANTS / "parse_floor.py")]
    found[FLOOR] = lambda given: [*floor, json.dumps(given)]
    if PEERS_PYTHON.exists():
        for name, file in (("boto3 loop", "boto3_loop.py"), ("async-kinesis", "async_kinesis_loop.py")):
            peer = [str(PEERS_PYTHON), str(CONTESTANTS / file)]
            found[name] = lambda given, peer=peer: [*peer, json.dumps(given)]  # type: ignore[misc]
    if bench.classes is not None:
        found[JAVA] = lambda given: _java_command(bench, given)
        found[KCLPY] = _daemon_command
    return found


def _ours(
    way: str, *, is_pure: bool = False, protocol: str = "auto"
) -> Callable[[dict[str, Any]], list[str]]:
    program = [sys.executable, str(CONTESTANTS / "leasehold_worker.py")]
    more = {"way": way, "is_pure": is_pure, "protocol": protocol}
    return lambda given: [*program, json.dumps(given | more)]


def _java_command(bench: Bench, given: dict[str, Any]) -> list[str]:
    from tests.interop.build import Member  # noqa: PLC0415 - only with --java
    from tests.servers.install import java  # noqa: PLC0415

    path = os.pathsep.join([str(bench.classes), *map(str, sorted(Member(KCL).jars.glob("*.jar")))])
    counts = f"{given['folder']}/counts"
    words = [given["kinesis"], given["dynamodb"], given["stream"], given["application"], counts]
    return [str(java()), "-Xmx512m", "-cp", path, "CountingMember", *words]


def _daemon_command(given: dict[str, Any]) -> list[str]:
    from benchmarks import multilang  # noqa: PLC0415 - only with --java

    folder = Path(given["folder"])
    multilang.write_program(
        folder, given["stream"], given["application"], given["kinesis"], given["dynamodb"]
    )
    return multilang.daemon_command("java")


@contextmanager
def _running(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "COUNTS": str(folder),
    }
    if any("MultiLangDaemon" in word for word in command):
        from tests.servers.install import site_packages  # noqa: PLC0415 - only with --java

        environment["PYTHONPATH"] = str(site_packages("kclpy"))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield process
        except BaseException:
            print((folder / "log").read_text(errors="replace")[-3000:], file=sys.stderr)
            raise
        finally:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def count_records(folder: Path) -> int:
    """The number of records that were handled so far."""
    files = [each for each in folder.iterdir() if each.name.startswith("counts") or "shardId" in each.name]
    return sum(
        int(line.split()[0]) for file in files for line in file.read_text().splitlines() if " " in line
    )


def cpu_of_run(bench: Bench, name: str, stream: str, backlog: Backlog, workload: Workload) -> float:
    """Read a stream to its end. Returns the CPU seconds of the contestant and its children."""
    # The floor does not split aggregates.
    expected = backlog.records if name == FLOOR else backlog.user_records
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        given = {
            "kinesis": bench.kinesis.endpoint_url,
            "dynamodb": bench.dynamodb,
            "stream": stream,
            "application": f"bench-{time.monotonic_ns()}",
            "folder": text,
            "aggregated": workload.aggregated,
            "records": backlog.user_records,
            "report_every": backlog.user_records // 100,
        }
        command = contestants(bench)[name](given)
        with _running(command, folder) as process:
            until = time.monotonic() + DEADLINE_S
            while (handled := count_records(folder)) < expected:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{name}: {handled} of {expected} records were handled")
                time.sleep(0.02)
            return tree_cpu_s(process.pid)


def compare(bench: Bench, workload: Workload, plan: Plan) -> Result:
    """Measure one workload with all contestants, in turns."""
    kind = "in KPL aggregates of 50 KB" if workload.aggregated else "plain"
    result = Result(
        workload.key,
        f"How much CPU does a consumer need for 1 GB of records of {workload.record_bytes:,} B, {kind}?",
        "net CPU s a GB",
        "make bench-java ARGS=worker" if plan.has_java else "make bench ARGS=worker",
        LIMIT,
    )
    client, streams = bench.kinesis.client(), {}
    times = JAVA_TIMES if plan.has_java else 1
    for length, records in (("short", workload.short * times), ("long", workload.long * times)):
        name = f"{workload.key}-{length}"
        client.create_stream(StreamName=name, ShardCount=SHARDS)
        streams[name] = fill_backlog(
            bench.kinesis, name, workload.record_bytes, records, aggregated=workload.aggregated
        )
    (short, few), (long, many) = streams.items()
    size = (many.user_records - few.user_records) * workload.record_bytes
    for name in interleaved(list(contestants(bench)), workload.repeats(plan)):
        used = cpu_of_run(bench, name, long, many, workload)
        used -= cpu_of_run(bench, name, short, few, workload)
        result.add(name, 1e9 * max(used, 0.0) / size)
        print(f"  {workload.key}, {name}: {result.values[name][-1]:.2f}", file=sys.stderr, flush=True)
    for name in streams:
        client.delete_stream(StreamName=name)
    return result


def run(plan: Plan) -> Iterator[Result]:
    """All workloads; with `is_quick` the two most important."""
    workloads = [
        each for each in WORKLOADS[: 2 if plan.is_quick and not plan.only else None] if plan.wants(each.key)
    ]
    if importlib.util.find_spec("leasehold_native") is None:
        print(NOT_MEASURED, file=sys.stderr, flush=True)
    with ExitStack() as stack:
        dynamodb = classes = None
        if plan.has_java:
            dynamodb, classes = _start_java(stack)
        kinesis = stack.enter_context(LocalKinesis.in_process())
        for workload in workloads:
            yield compare(Bench(kinesis, dynamodb, classes), workload, plan)


def _start_java(stack: ExitStack) -> tuple[str, Path]:
    """Start DynamoDB Local and compile the member on the KCL."""
    from tests.interop.build import Member  # noqa: PLC0415 - only with --java
    from tests.servers.catalog import DYNAMODB_LOCAL  # noqa: PLC0415
    from tests.servers.install import java  # noqa: PLC0415
    from tests.servers.running import Run  # noqa: PLC0415

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    servers = Run(os.getpid(), folder)
    stack.callback(servers.end)
    classes = folder / "classes"
    classes.mkdir()
    jars = os.pathsep.join(map(str, sorted(Member(KCL).jars.glob("*.jar"))))
    source = str(CONTESTANTS / "CountingMember.java")
    compiler = ["com.sun.tools.javac.Main", "-nowarn", "-d", str(classes), "-cp", jars, source]
    subprocess.run([str(java()), "-m", "jdk.compiler/" + compiler[0], *compiler[1:]], check=True)
    return servers.server(DYNAMODB_LOCAL).url, classes
