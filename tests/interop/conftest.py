"""Fixtures: an empty fleet on a new stream and a new application, under load."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasehold.local import LocalKinesis
from tests.interop.build import NEWEST, REMEDY, is_built
from tests.interop.fleet_run import FleetRun, start_fleet_run
from tests.interop.mixed_fleet import MixedFleet
from tests.servers import Server


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker `core`: tests that every change must pass."""
    config.addinivalue_line("markers", "core: runs with every change; the rest is for `make interop`")
    config.addinivalue_line("markers", "kcl(version): the KCL of a test that does not need the newest")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test, with the reason, if the KCL that it needs was not built."""
    if "fleet_run" in getattr(item, "fixturenames", ()):
        marked = item.get_closest_marker("kcl")
        version = NEWEST if marked is None else marked.args[0]
        if not is_built(version):
            pytest.skip(f"there is no Java member on KCL {version} here: {REMEDY}")


@pytest.fixture
def fleet_run(
    tmp_path: Path, dynamodb_local: Server, unique_name: Callable[[str], str]
) -> Iterator[FleetRun]:
    """An empty fleet under load. A test ends with `conclude`, which checks the promises."""
    with LocalKinesis.in_process() as kinesis:
        fleet = MixedFleet(
            folder=tmp_path,
            stream=unique_name("stream"),
            application=unique_name("application"),
            kinesis_url=kinesis.endpoint_url,
            dynamodb_url=dynamodb_local.url,
        )
        with start_fleet_run(kinesis.client(), fleet, dynamodb_local.client("dynamodb")) as run:
            yield run
