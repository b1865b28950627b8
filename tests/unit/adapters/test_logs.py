"""Log lines: quiet, complete, and safe to show."""

import logging
import re
from dataclasses import fields

import pytest

from leasehold.adapters.logs import LINES, SUBJECTS_MAX, LogObserver
from leasehold.core.events import (
    Checkpointed,
    DeaggregationFailed,
    Event,
    FleetRefreshed,
    GapFound,
    HandlerFailed,
    LeasesRenewed,
    LeaseTaken,
    PageRead,
    ReadFailed,
    RecordDeadLettered,
    RecordSkipped,
    RowRejected,
    ShardBlockedOnParents,
    ShardsSynced,
    WorkerFailed,
)
from leasehold.core.model import LeaseKey, ShardId, WorkerId
from leasehold.core.position import Position
from leasehold.core.records.iterators import Gap
from tests.sample_events import EVENT_TYPES, sample

SHARD = ShardId("shard-0")
EVIL = 'w-1\n2026-01-01 ERROR forged\x1b[31m\x9b"\u2028\u202e'


class Told:
    """What was logged, and a clock to move."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self.now_ms = 0
        self.tell = LogObserver(lambda: self.now_ms)

    def lines(self, level: int = logging.DEBUG) -> list[str]:
        return [record.getMessage() for record in self._caplog.records if record.levelno >= level]

    def levels(self) -> list[str]:
        return [record.levelname for record in self._caplog.records]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    caplog.set_level(logging.DEBUG, logger="leasehold")
    return Told(caplog)


def test_every_event_has_a_line() -> None:
    """A new event cannot be forgotten."""
    assert set(LINES) == set(EVENT_TYPES)


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_line_can_be_told(told: Told, kind: type[Event]) -> None:
    """Each template finds its values in its event."""
    told.tell(sample(kind))
    (line,) = told.lines()
    assert "{" not in line
    assert re.search(r"\w=\S", line)


def test_only_a_worker_that_stops_is_an_error(told: Told) -> None:
    """ERROR is kept for what must wake somebody up, and its line says that the worker stops."""
    for kind in EVENT_TYPES:
        told.tell(sample(kind, error="ConfigError"))
    assert told.lines(logging.ERROR) == ["worker failed and stops error=ConfigError"]


def test_a_gap_says_how_sure_it_is(told: Told) -> None:
    """What was trimmed cannot be seen, and where nothing is left there is nowhere to go on."""
    told.tell(GapFound(SHARD, Gap(Position("100"), None, None)))
    told.tell(GapFound(SHARD, Gap(Position("100"), "117", 5)))
    assert told.lines(logging.WARNING) == [
        "gap found, records may be missing shard=shard-0 after=100 resumes_at=-",
        "gap found, records may be missing shard=shard-0 after=100 resumes_at=117",
    ]


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_the_shard_comes_first(kind: type[Event]) -> None:
    """Fields stand in the same order, so that lines can be compared by eye."""
    names = re.findall(r"(\w+)=%s", LINES[kind].template)
    assert names
    assert "shard" not in names[1:]


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_no_value_can_forge_a_line_or_move_a_cursor(told: Told, kind: type[Event]) -> None:
    """Names from the lease table and from other members are shown escaped."""
    texts = {
        field.name: EVIL
        for field in fields(kind)
        if field.name not in {"position", "checkpoint", "start", "end", "gap", "parents", "children"}
        and not field.name.endswith(("_ms", "_behind"))
    }
    told.tell(sample(kind, **texts))
    (line,) = told.lines()
    assert line.isprintable()


@pytest.mark.parametrize(
    "event",
    [
        HandlerFailed(SHARD, Position("1"), Position("2"), 2, 1, "ValueError: secret"),
        RecordDeadLettered(SHARD, Position("1"), "pkg.BadOrder('secret')"),
        RecordSkipped(SHARD, Position("1"), "'secret'"),
        WorkerFailed("ValueError: secret"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_the_words_of_a_handlers_error_are_not_told(told: Told, event: Event) -> None:
    """An exception's text may quote the record; only its type is shown."""
    told.tell(event)
    assert "secret" not in told.lines()[0]


def test_an_idle_healthy_worker_logs_nothing_at_info(told: Told) -> None:
    """Silence means that all is well."""
    idle: list[Event] = [
        FleetRefreshed(4, 0, 4, 1),
        LeasesRenewed(4, 0, 12),
        ShardsSynced(4, 0),
        PageRead(SHARD, 0, 0, 0, 9),
        Checkpointed(SHARD, Position("7")),
    ]
    for event in idle:
        told.tell(event)
    assert told.lines(logging.INFO) == []
    assert len(told.lines()) == len(idle)


def taken(silent_ms: int | None) -> LeaseTaken:
    return LeaseTaken(LeaseKey(SHARD), SHARD, WorkerId("w-4"), silent_ms, 118, Position("4957"))


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (taken(None), "INFO"),
        (taken(21_300), "WARNING"),
        (ShardsSynced(8, 2), "INFO"),
        (DeaggregationFailed(SHARD, Position("1"), "wrong MD5", 0), "DEBUG"),
        (DeaggregationFailed(SHARD, Position("1"), "hash key outside the shard", 3), "WARNING"),
    ],
)
def test_the_level_follows_the_meaning(told: Told, event: Event, level: str) -> None:
    """A warning means that records are read twice or lost; a change of owner alone is news."""
    told.tell(event)
    assert told.levels() == [level]


def test_a_line_reads_as_promised(told: Told) -> None:
    """The format is part of what operators rely on."""
    told.tell(taken(21_300))
    assert told.lines() == ["lease taken shard=shard-0 from=w-4 silent_ms=21300 counter=118 checkpoint=4957"]


@pytest.mark.parametrize(
    "event",
    [
        RowRejected("k", "leaseCounter: expected an integer"),
        ShardBlockedOnParents(SHARD, (ShardId("shard-9"),)),
    ],
)
def test_what_lasts_is_told_once_a_minute(told: Told, event: Event) -> None:
    """A state that is reported at every look does not fill the log; the count is not lost."""
    for second in range(61):
        told.now_ms = second * 1_000
        told.tell(event)
    first, second_line = told.lines(logging.INFO)
    assert "times" not in first
    assert second_line.endswith("times=60")


def test_failing_reads_are_told_only_when_they_go_on(told: Told) -> None:
    """One lost answer is routine; half a minute without a page is not."""
    failure = ReadFailed(SHARD, "no answer", 500)
    for now_ms in (0, 20_000):
        told.now_ms = now_ms
        told.tell(failure)
    told.tell(PageRead(SHARD, 0, 0, 0, 9))
    for now_ms in (25_000, 40_000, 55_000):
        told.now_ms = now_ms
        told.tell(failure)
    assert told.lines(logging.WARNING) == ['read failed shard=shard-0 wait_ms=500 error="no answer" times=3']


def test_any_number_of_bad_rows_needs_bounded_memory_and_few_lines(told: Told) -> None:
    """A table full of junk rows neither floods the log nor grows the process."""
    for number in range(3 * SUBJECTS_MAX):
        told.tell(RowRejected(f"junk-{number}", "bad"))
    assert len(told.lines(logging.WARNING)) == SUBJECTS_MAX + 1
