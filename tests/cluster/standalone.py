"""A Spark standalone cluster on this machine: a master and some workers, from the jars of pyspark."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pyspark

from leasehold.spark.pipeline.java import find_java
from leasehold.spark.pipeline.start_up import cache_folder, spark_home_without_zip

INSTALLED = Path(pyspark.__file__).parent
START_DEADLINE_S = 240
MASTER_READY = re.compile(r"Starting Spark master at (spark://\S+)")
WORKER_READY = re.compile(r"Registering worker 127\.0\.0\.1")
EXECUTOR = b"CoarseGrainedExecutorBackend"


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = START_DEADLINE_S) -> None:
    """Wait for a condition. Raises AssertionError with its description after the deadline."""
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, f"not within {deadline_s} s: {what}"
        time.sleep(0.1)


@dataclass
class Cluster:
    """The processes of a cluster. `folder` contains their output."""

    folder: Path
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    url: str = ""

    def start(self, workers: int) -> Self:
        """Start the master and workers of one core. Returns when all workers have registered."""
        self._start("master", "org.apache.spark.deploy.master.Master")
        wait_until(lambda: bool(MASTER_READY.search(self.output("master"))), "the master has started")
        found = MASTER_READY.search(self.output("master"))
        assert found
        self.url = found[1]
        for number in range(workers):
            self._start(
                f"worker-{number}",
                "org.apache.spark.deploy.worker.Worker",
                *("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / f"work-{number}")),
                self.url,
            )
        wait_until(
            lambda: len(WORKER_READY.findall(self.output("master"))) == workers, "all workers have registered"
        )
        return self

    def end(self) -> None:
        """End all processes. Executors end with their worker."""
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(60)

    def output(self, name: str) -> str:
        """The output of a process so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill_executor_of(self, python_worker: int) -> None:
        """Kill the executor of a task and the Spark worker that started it, as if their machine failed."""
        executor = executor_of(python_worker)
        worker = next(each for each in self.processes if each.pid == parent_of(executor))
        worker.kill()
        os.kill(executor, 9)
        worker.wait(60)

    def _start(self, name: str, main: str, *arguments: str) -> None:
        environment = spark_environment()
        command = [f"{environment['SPARK_HOME']}/bin/spark-class", main]
        command += ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )


def spark_environment() -> dict[str, str]:
    """The environment of all Spark processes: Java, a home for a fast start, and the loopback interface only."""
    cache = cache_folder(os.environ)
    home = spark_home_without_zip(os.environ, INSTALLED, pyspark.__version__, cache) or INSTALLED
    return os.environ | {
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(find_java(os.environ, cache).home),
        "SPARK_LOCAL_IP": "127.0.0.1",  # also for the web UI
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false -XX:TieredStopAtLevel=1",
    }


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """Run a cluster within the block."""
    folder.mkdir()
    running = Cluster(folder)
    try:
        yield running.start(workers)
    finally:
        running.end()


def executor_of(python_worker: int) -> int:
    """The executor JVM of a Python worker. It started the daemon that started the worker."""
    process = python_worker
    while EXECUTOR not in Path(f"/proc/{process}/cmdline").read_bytes():
        process = parent_of(process)
    return process


def parent_of(process: int) -> int:
    """The parent of a process."""
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
