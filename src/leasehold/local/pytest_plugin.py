"""The pytest plugin with the fixture `local_kinesis`: a Kinesis server on loopback for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from leasehold.local import LocalKinesis


@pytest.fixture(scope="session")
def local_kinesis() -> Iterator[LocalKinesis]:
    """Run a local Kinesis server for the whole session, on a free port.

    Streams of one test remain for the next: give each its own name, or call `reset()`.
    """
    # Every run of pytest loads this plugin, so the server is imported only when the fixture is used.
    from leasehold.local import LocalKinesis  # noqa: PLC0415

    with LocalKinesis.in_thread() as kinesis:
        yield kinesis
