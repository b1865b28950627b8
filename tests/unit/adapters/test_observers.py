"""Several observers as one."""

import logging

import pytest

from leasehold.adapters.observers import combine_observers
from leasehold.core.events import Event, FleetRefreshed, IteratorExpired
from leasehold.core.model import ShardId

EVENTS: list[Event] = [FleetRefreshed(1, 2, 3, 4), IteratorExpired(ShardId("shard-0"))]


def test_everyone_is_told_everything() -> None:
    """Each observer sees every event, in order."""
    first: list[Event] = []
    second: list[Event] = []
    observe = combine_observers(first.append, second.append)
    for event in EVENTS:
        observe(event)
    assert first == second == EVENTS


def test_an_observer_that_fails_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The others are still told, and the trouble is warned of once."""

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
