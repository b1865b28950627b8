"""Starts, kills and stops Java, Python and Spark members of one fleet, and reads what each of them told."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fleet.run_check import Handled, read_logs
from tests.fleet.worker_processes import ROOT
from tests.interop.build import NEWEST, java_command
from tests.interop.spark_member import archived_records, kill_session, write_pipeline

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
}


@dataclass
class MixedFleet:
    """Members of three kinds, with as little patience as a busy machine allows. Each writes into `folder`."""

    folder: Path
    stream: str
    application: str
    kinesis_url: str
    dynamodb_url: str
    java_options: dict[str, Any] = field(default_factory=lambda: dict(JAVA_OPTIONS))
    python_options: dict[str, Any] = field(default_factory=lambda: dict(PYTHON_OPTIONS))
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    archives: dict[str, Path] = field(default_factory=dict)  # of the Spark members

    def start_java(self, version: str = NEWEST, **options: Any) -> str:
        """Start a Java member on this version of the KCL."""
        worker = self._new_name(JAVA)
        told = self.java_options | options | self._common() | {"worker": worker}
        told |= {"kinesis": self.kinesis_url, "dynamodb": self.dynamodb_url}
        command = java_command(version, self.folder / f"{worker}.kcl.log")
        self._start(worker, [*command, *(f"{name}={value}" for name, value in told.items())])
        return worker

    def start_python(self, **options: Any) -> str:
        """Start a Python member."""
        worker = self._new_name(PYTHON)
        told = self.python_options | options | self._common() | {"worker_id": worker, "region": "us-east-1"}
        told |= {"kinesis_endpoint": self.kinesis_url, "dynamodb_endpoint": self.dynamodb_url}
        arguments = [json.dumps(told), str(self.folder)]
        self._start(worker, [sys.executable, "-m", "tests.interop.python_member", *arguments])
        return worker

    def start_spark(self, **options: Any) -> str:
        """Start a Spark member. Its name in the fleet is yet to be found out, see `rename`."""
        worker = self._new_name(SPARK)
        self.archives[worker] = self.folder / f"{worker}.archive"
        source = SPARK_OPTIONS | options | {"region": "us-east-1"}
        source |= {"streamName": self.stream, "applicationName": self.application}
        source |= {"endpointUrl": self.kinesis_url, "dynamodbEndpointUrl": self.dynamodb_url}
        file = self.folder / f"{worker}.toml"
        write_pipeline(file, source, self.archives[worker])
        self._start(worker, [sys.executable, "-m", "leasehold.cli", "pipeline", str(file)])
        return worker

    def rename(self, worker: str, name: str) -> None:
        """A member turned out to have this name in the fleet."""
        (self.folder / f"{worker}.out").rename(self.folder / f"{name}.out")
        self.running[name] = self.running.pop(worker)
        self.archives[name] = self.archives.pop(worker)

    def kill(self, worker: str) -> None:
        """Kill -9."""
        process = self.running.pop(worker)
        if worker in self.archives:
            kill_session(process.pid)
        process.kill()
        process.wait()

    def stop(self, worker: str) -> None:
        """SIGTERM: it ends in good order."""
        process = self.running.pop(worker)
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(EXIT_DEADLINE_S)
        finally:
            process.kill()
        # A JVM that was told to end says so by its code, however well it ended.
        assert code in {0, 128 + signal.SIGTERM}, self.output_of(worker)

    def kill_all(self) -> None:
        """Leave nothing running, whatever happened."""
        for worker in list(self.running):
            self.kill(worker)

    def check_alive(self) -> None:
        """No member may have ended by itself."""
        for worker, process in self.running.items():
            assert process.poll() is None, f"{worker} ended by itself:\n{self.output_of(worker)}"

    def output_of(self, worker: str) -> str:
        """The end of what a member printed."""
        return (self.folder / f"{worker}.out").read_text(errors="replace")[-3000:]

    def handled(self) -> list[Handled]:
        """Every record that any member was given, in the order of time."""
        java = [
            record
            for path in self.folder.glob(f"{JAVA}-*.out")
            for record in _told_by_java(self.folder, path.stem)
        ]
        spark = [
            record for worker, each in self.archives.items() for record in archived_records(each, worker)
        ]
        return sorted(read_logs(self.folder) + java + spark)

    def told(self, worker: str, event: str) -> list[dict[str, Any]]:
        """What a Java member told of one kind of event."""
        return [line for line in _lines(self.folder / f"{worker}.out") if line["event"] == event]

    def lost_leases(self) -> set[str]:
        """Members that lost a lease without having been asked to hand it over."""
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
        asked = {line["token"] for line in self.told(worker, "asked to stop")}
        return any(line["token"] not in asked for line in self.told(worker, "lost"))

    def _common(self) -> dict[str, Any]:
        # Members of several streams are told of them in their options, each kind in its own way.
        named = {"stream": self.stream} if self.stream else {}
        return {**named, "application": self.application}

    def _new_name(self, kind: str) -> str:
        worker = f"{kind}-{len(self.started) + 1}"
        self.started.append(worker)
        return worker

    def _start(self, worker: str, command: list[str]) -> None:
        environment = os.environ | {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        with (self.folder / f"{worker}.out").open("wb") as output:
            self.running[worker] = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def _told_by_java(folder: Path, worker: str) -> Iterator[Handled]:
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
    """The lines that are events; a killed member may not have finished its last one."""
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith('{"event"') and line.endswith("}"):
            yield json.loads(line)
