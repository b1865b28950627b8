"""Several observers combined into one."""

import logging

import pytest

from leasehold.adapters.observers import combine_observers
from leasehold.core.events import Event, FleetRefreshed, IteratorExpired
from leasehold.core.model import ShardId

EVENTS: list[Event] = [FleetRefreshed(1, 2, 3, 4), IteratorExpired(ShardId("shard-0"))]


def test_every_observer_gets_every_event() -> None:
    """In order."""
    first: list[Event] = []
    second: list[Event] = []
    observe = combine_observers(first.append, second.append)
    for event in EVENTS:
        observe(event)
    assert first == second == EVENTS


def test_a_failing_observer_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """The others still get the event, and the failure is logged as a warning once."""

    def broken(event: Event) -> None:
        raise ValueError(event)

    seen: list[Event] = []
    observe = combine_observers(broken, seen.append)
    for event in EVENTS:
        observe(event)
    assert seen == EVENTS
    assert [record.levelno for record in caplog.records if record.levelno >= logging.WARNING] == [
        logging.WARNING
    ]
