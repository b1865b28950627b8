"""The pytest plugin: the fixture `local_kinesis`, a Kinesis server on loopback for the tests of a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from leasehold.local import LocalKinesis


@pytest.fixture(scope="session")
def local_kinesis() -> Iterator[LocalKinesis]:
    """A local Kinesis server of this test process, on a free port, for the whole session.

    Streams of one test stay for the next: give each its own name, or call `reset()`.
    """
    # Loaded with every run of pytest, so the server is imported only by those who use it.
    from leasehold.local import LocalKinesis  # noqa: PLC0415

    with LocalKinesis.in_thread() as kinesis:
        yield kinesis
