"""Members that are MultiLang daemons: the Java one of `kclpy-ext`, and `leasehold multilang`, with one properties file.

Both start the program `daemon_child.py` for each shard, on kclpy's own Python part.
"""

import os
import sys
from pathlib import Path

from tests.interop.build import SOURCES
from tests.interop.mixed_fleet import FAILOVER_MS, JAVA, LOCK_MS, PYTHON, MixedFleet
from tests.servers.install import java, kcl_jars, site_packages

CHILD = Path(__file__).parent / "daemon_child.py"
PROPERTIES = {
    "executableName": f"{sys.executable} -S {CHILD}",
    "AwsCredentialsProvider": "DefaultCredentialsProvider",
    "regionName": "us-east-1",
    "processingLanguage": "python/3.11",
    "initialPositionInStream": "TRIM_HORIZON",
    "retrievalMode": "POLLING",
    "idleTimeBetweenReadsInMillis": 250,
    "failoverTimeMillis": FAILOVER_MS,
    "leaseAssignmentIntervalMillis": 3_000,
    "shardSyncIntervalMillis": 1_000,
    "parentShardPollIntervalMillis": 1_000,
    "metricsLevel": "NONE",
    "shutdownGraceMillis": 30_000,
    # All members run on one machine: its load says nothing about them.
    "disableWorkerMetrics": "true",
}
# What a properties file cannot say.
VARIABLES = {
    "LEASEHOLD_LEADER_LOCK_DURATION": f"{LOCK_MS}ms",
    "LEASEHOLD_REFRESH_EVERY": "500ms",
    "LEASEHOLD_FIRST_AUDIT_AFTER": "5s",
    "LEASEHOLD_AUDIT_EVERY": "5s",
    "LEASEHOLD_CLEAN_UP_EVERY": "10s",
    "LEASEHOLD_BALANCE_BY": "count",
}


def start_java_daemon(fleet: MixedFleet) -> str:
    """Start the Java daemon. Its log goes to a file."""
    worker, file = _write_properties(fleet, JAVA)
    resources = SOURCES / "src" / "main" / "resources"
    command = [
        str(java()),
        "-Xmx192m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Dlog.file={fleet.folder / f'{worker}.kcl.log'}",
        "-cp",
        os.pathsep.join(map(str, (resources, *sorted(kcl_jars().glob("*.jar"))))),
        "software.amazon.kinesis.multilang.MultiLangDaemon",
        "--properties-file",
        str(file),
    ]
    fleet.start_command(worker, command, _variables(fleet, worker))
    return worker


def start_our_daemon(fleet: MixedFleet) -> str:
    """Start `leasehold multilang` with the same properties."""
    worker, file = _write_properties(fleet, PYTHON)
    command = [sys.executable, "-m", "leasehold.cli", "multilang", "--properties-file", str(file)]
    fleet.start_command(worker, command, _variables(fleet, worker) | VARIABLES)
    return worker


def _write_properties(fleet: MixedFleet, kind: str) -> tuple[str, Path]:
    """Write the file of a member. Files differ in the worker id only."""
    worker = fleet.new_name(kind)
    given = PROPERTIES | {
        "workerId": worker,
        "streamName": fleet.stream,
        "applicationName": fleet.application,
        "kinesisEndpoint": fleet.kinesis_url,
        "dynamoDBEndpoint": fleet.dynamodb_url,
    }
    file = fleet.folder / f"{worker}.properties"
    file.write_text("".join(f"{key} = {value}\n" for key, value in given.items()))
    return worker, file


def _variables(fleet: MixedFleet, worker: str) -> dict[str, str]:
    return {
        "PYTHONPATH": str(site_packages("kclpy")),
        "DAEMON_WORKER": worker,
        "DAEMON_HANDLED": str(fleet.folder / f"{worker}.handled"),
    }
