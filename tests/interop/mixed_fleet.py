"""Starts, kills and stops Java, Python and Spark members of one fleet, and reads their output."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.fleet.run_check import Handled, read_logs
from tests.fleet.worker_processes import ROOT
from tests.interop.build import NEWEST, java_command
from tests.interop.spark_member import ARCHIVE, SparkPipeline, kill_session

JAVA = "java"
PYTHON = "python"
SPARK = "spark"
FAILOVER_MS = 5_000
LOCK_MS = 8_000
EXIT_DEADLINE_S = 120.0

JAVA_OPTIONS = {
    "mode": "3X",
    "failover_ms": FAILOVER_MS,
    "assignment_ms": 3_000,
    "sync_ms": 1_000,
    "audit_ms": 5_000,
    "lock_ms": LOCK_MS,
    "beat_ms": 2_000,
    "parents_ms": 1_000,
    "idle_ms": 250,
}
# Options of a Java leader that balances by the number of leases, as `balance_by="count"` does.
BY_COUNT = {"balance_by": "LEASE_COUNT_BASED"}
PYTHON_OPTIONS = {
    "mode": "auto",
    "failover_after": f"{FAILOVER_MS}ms",
    "leader_lock_duration": f"{LOCK_MS}ms",
    "refresh_every": "500ms",
    "checkpoint_every": "500ms",
    "idle_poll_every": "250ms",
    "first_audit_after": "5s",
    "audit_every": "5s",
    "clean_up_every": "10s",
    "balance_by": "count",
}
SPARK_OPTIONS = {
    "mode": "auto",
    "failoverAfter": f"{FAILOVER_MS}ms",
    "startingPosition": "trim_horizon",
    "pollInterval": "250ms",
    "columns": "archive",
}


@dataclass
class MixedFleet:
    """Members of three kinds, with timeouts as short as a busy machine allows. Each writes into `folder`."""

    folder: Path
    stream: str
    application: str
    kinesis_url: str
    dynamodb_url: str
    java_options: dict[str, Any] = field(default_factory=lambda: dict(JAVA_OPTIONS))
    python_options: dict[str, Any] = field(default_factory=lambda: dict(PYTHON_OPTIONS))
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    pipelines: dict[str, SparkPipeline] = field(default_factory=dict)  # of the Spark members

    def start_java(self, version: str = NEWEST, **options: Any) -> str:
        """Start a Java member on this version of the KCL."""
        worker = self.new_name(JAVA)
        all_options = self.java_options | options | self._common() | {"worker": worker}
        all_options |= {"kinesis": self.kinesis_url, "dynamodb": self.dynamodb_url}
        command = java_command(version, self.folder / f"{worker}.kcl.log")
        self.start_command(worker, [*command, *(f"{name}={value}" for name, value in all_options.items())])
        return worker

    def start_python(self, **options: Any) -> str:
        """Start a Python member."""
        worker = self.new_name(PYTHON)
        all_options = (
            self.python_options | options | self._common() | {"worker_id": worker, "region": "us-east-1"}
        )
        all_options |= {"kinesis_endpoint": self.kinesis_url, "dynamodb_endpoint": self.dynamodb_url}
        arguments = [json.dumps(all_options), str(self.folder)]
        self.start_command(worker, [sys.executable, "-m", "tests.interop.python_member", *arguments])
        return worker

    def start_spark(self, sink: str = ARCHIVE, **options: Any) -> str:
        """Start a Spark member. Its worker id is not known yet, see `rename`."""
        worker = self.new_name(SPARK)
        source = SPARK_OPTIONS | options | {"region": "us-east-1"}
        source |= {"streamName": self.stream, "applicationName": self.application}
        source |= {"endpointUrl": self.kinesis_url, "dynamodbEndpointUrl": self.dynamodb_url}
        self._start_pipeline(worker, SparkPipeline(self.folder / f"{worker}.toml", source, sink))
        return worker

    def restart_spark(self, worker: str, **options: Any) -> None:
        """Start a Spark member that has ended, with its checkpoint location and these options beside its own."""
        pipeline = self.pipelines[worker]
        self._start_pipeline(worker, replace(pipeline, source={**pipeline.source, **options}))

    def _start_pipeline(self, worker: str, pipeline: SparkPipeline) -> None:
        pipeline.write()
        self.pipelines[worker] = pipeline
        self.start_command(worker, [sys.executable, "-m", "leasehold.cli", "pipeline", str(pipeline.file)])

    def rename(self, worker: str, name: str) -> None:
        """Set the worker id of a member."""
        (self.folder / f"{worker}.out").rename(self.folder / f"{name}.out")
        self.running[name] = self.running.pop(worker)
        self.pipelines[name] = self.pipelines.pop(worker)

    def kill(self, worker: str) -> None:
        """Kill -9."""
        process = self.running.pop(worker)
        if worker in self.pipelines:
            kill_session(process.pid)
        process.kill()
        process.wait()

    def stop(self, worker: str) -> None:
        """Stop a member with SIGTERM, and check its exit code."""
        process = self.running.pop(worker)
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(EXIT_DEADLINE_S)
        finally:
            process.kill()
        # After SIGTERM a JVM exits with this code even if it stopped cleanly.
        assert code in {0, 128 + signal.SIGTERM}, self.output_of(worker)

    def wait_for_end(self, worker: str) -> int:
        """Wait until a member ends by itself. Returns its exit code."""
        code = self.running[worker].wait(EXIT_DEADLINE_S)
        del self.running[worker]
        return code

    def kill_all(self) -> None:
        """Kill every member."""
        for worker in list(self.running):
            self.kill(worker)

    def check_alive(self) -> None:
        """Fail if a member has ended by itself."""
        for worker, process in self.running.items():
            assert process.poll() is None, f"{worker} ended by itself:\n{self.output_of(worker)}"

    def output_of(self, worker: str) -> str:
        """The last part of a member's output."""
        return (self.folder / f"{worker}.out").read_text(errors="replace")[-3000:]

    def handled(self) -> list[Handled]:
        """Every record that a member handled, in the order of time."""
        java = [
            record
            for path in self.folder.glob(f"{JAVA}-*.out")
            for record in _handled_by_java(self.folder, path.stem)
        ]
        spark = [record for worker, each in self.pipelines.items() for record in each.records(worker)]
        return sorted(read_logs(self.folder) + java + spark)

    def java_events(self, worker: str, event: str) -> list[dict[str, Any]]:
        """The events of one kind in the output of a Java member."""
        return [line for line in _lines(self.folder / f"{worker}.out") if line["event"] == event]

    def lost_leases(self) -> set[str]:
        """Members that lost a lease without a handoff request."""
        ours = {
            path.stem
            for kind in (PYTHON, SPARK)
            for path in self.folder.glob(f"{kind}-*.out")
            if "lease lost" in path.read_text(errors="replace")
        }
        return ours | {
            path.stem for path in self.folder.glob(f"{JAVA}-*.out") if self._was_taken_from(path.stem)
        }

    def _was_taken_from(self, worker: str) -> bool:
        asked = {line["token"] for line in self.java_events(worker, "asked to stop")}
        return any(line["token"] not in asked for line in self.java_events(worker, "lost"))

    def _common(self) -> dict[str, Any]:
        # Members of several streams get them as options, in a different form for each kind.
        named = {"stream": self.stream} if self.stream else {}
        return {**named, "application": self.application}

    def new_name(self, kind: str) -> str:
        """The name of the next member."""
        worker = f"{kind}-{len(self.started) + 1}"
        self.started.append(worker)
        return worker

    def start_command(
        self, worker: str, command: list[str], variables: Mapping[str, str] | None = None
    ) -> None:
        """Start a member. Its output goes to a file, after that of its earlier runs."""
        environment = os.environ | {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        environment |= variables or {}
        with (self.folder / f"{worker}.out").open("ab") as output:
            self.running[worker] = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def _handled_by_java(folder: Path, worker: str) -> Iterator[Handled]:
    for line in _lines(folder / f"{worker}.out"):
        if line["event"] == "handled":
            for place, (sequence, sub_sequence, number) in enumerate(line["records"]):
                yield Handled(
                    line["at_ns"] + place,
                    worker,
                    line["token"],
                    line["shard"],
                    int(sequence),
                    int(sub_sequence),
                    int(number),
                )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The events in the output. The last line of a killed member may be incomplete."""
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith('{"event"') and line.endswith("}"):
            yield json.loads(line)
