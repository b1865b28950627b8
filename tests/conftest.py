"""Fixtures for the real servers. One server of a kind serves the whole run, so each test uses its own tables and
streams: `unique_name` creates their names.

If a server is not installed, its tests fail with the command that installs it. They are never skipped, because a
skipped contract test looks like a passed one.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import Server
from tests.servers.catalog import DYNAMODB_LOCAL, KINESIS_LOCAL, MINISTACK
from tests.servers.running import Run
from tests.simulation.fresh_seeds import current_commit, repeat_fresh_seeds

# The machine is shared, so the time of one case means nothing.
settings.register_profile("leasehold", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("leasehold")

RUN = pytest.StashKey[Run]()
SERVER_FIXTURES = {"dynamodb_local", "kinesis_local", "ministack"}


def pytest_configure(config: pytest.Config) -> None:
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None:
        config.stash[RUN] = Run(os.getpid(), Path(tempfile.mkdtemp(prefix="leasehold-servers-")))
    else:
        config.stash[RUN] = Run(worker["servers_owner"], Path(worker["servers_folder"]))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist: passes the address of the run's servers to a worker process."""
    run = node.config.stash[RUN]
    node.workerinput["servers_owner"] = run.owner
    node.workerinput["servers_folder"] = str(run.folder)


def pytest_report_header() -> list[str]:
    """Prints how to repeat the simulated runs that are new in this commit."""
    return [f"fresh seeds: {command}" for command in repeat_fresh_seeds(current_commit())]


def pytest_unconfigure(config: pytest.Config) -> None:
    run = config.stash.get(RUN, None)
    if run is not None and run.owner == os.getpid():
        run.end()
        shutil.rmtree(run.folder, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the last log lines of the servers to a failed test."""
    report = yield
    if report.failed:
        used = SERVER_FIXTURES & set(getattr(item, "fixturenames", ()))
        for name, tail in item.config.stash[RUN].log_tails(used).items():
            report.sections.append((f"end of the log of {name}", tail))
    return report


@pytest.fixture(scope="session")
def dynamodb_local(request: pytest.FixtureRequest) -> Server:
    """AWS's own DynamoDB engine, in memory."""
    return request.config.stash[RUN].server(DYNAMODB_LOCAL)


@pytest.fixture(scope="session")
def ministack(request: pytest.FixtureRequest) -> Server:
    """ministack: DynamoDB, S3, CloudWatch, and Kinesis with fan-out (but without resharding)."""
    return request.config.stash[RUN].server(MINISTACK)


@pytest.fixture(scope="session")
def kinesis_local(request: pytest.FixtureRequest) -> Server:
    """kinesis-local: Kinesis by polling, mostly like AWS. Slow: keep a shard under 2,000 records."""
    return request.config.stash[RUN].server(KINESIS_LOCAL)


@pytest.fixture
def unique_name() -> Callable[[str], str]:
    """Creates names of tables and streams that no other test uses."""
    return lambda prefix: f"{prefix}-{uuid.uuid4().hex[:12]}"
