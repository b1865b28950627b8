"""Log lines are complete, few, and contain no secrets."""

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
    StreamRecreated,
    WorkerFailed,
)
from leasehold.core.finding import Finding, Severity
from leasehold.core.model import LeaseKey, ShardId, WorkerId
from leasehold.core.position import Position
from leasehold.core.records.iterators import Gap
from tests.sample_events import EVENT_TYPES, sample

SHARD = ShardId("shard-0")
EVIL = 'w-1\n2026-01-01 ERROR forged\x1b[31m\x9b"\u2028\u202e'


class EventLog:
    """The lines that were logged, and a clock to set."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self.now_ms = 0
        self.observe = LogObserver(lambda: self.now_ms)

    def lines(self, level: int = logging.DEBUG) -> list[str]:
        return [record.getMessage() for record in self._caplog.records if record.levelno >= level]

    def levels(self) -> list[str]:
        return [record.levelname for record in self._caplog.records]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> EventLog:
    caplog.set_level(logging.DEBUG, logger="leasehold")
    return EventLog(caplog)


def test_every_event_has_a_line() -> None:
    """A new event cannot be forgotten."""
    assert set(LINES) == set(EVENT_TYPES)


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_line_can_be_formatted(log: EventLog, kind: type[Event]) -> None:
    """Each template finds its values in its event."""
    log.observe(sample(kind))
    (line,) = log.lines()
    assert "{" not in line
    assert re.search(r"\w=\S", line)


def test_only_a_failed_worker_is_an_error(log: EventLog) -> None:
    """ERROR is reserved for a worker that stops."""
    for kind in EVENT_TYPES:
        log.observe(sample(kind, error="ConfigError"))
    assert sorted(log.lines(logging.ERROR)) == [
        "stream recreated name=text problem=text",
        "worker failed and stops error=ConfigError",
    ]
    log.observe(StreamRecreated("orders", "it starts over", is_fatal=False))
    assert len(log.lines(logging.ERROR)) == 2


def test_the_line_of_a_gap_says_may(log: EventLog) -> None:
    """It is unknown what was trimmed. If nothing of the shard is left, `resumes_at` is empty."""
    log.observe(GapFound(SHARD, Gap(Position("100"), None, None)))
    log.observe(GapFound(SHARD, Gap(Position("100"), "117", 5)))
    assert log.lines(logging.WARNING) == [
        "gap found, records may be missing shard=shard-0 after=100 resumes_at=-",
        "gap found, records may be missing shard=shard-0 after=100 resumes_at=117",
    ]


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_the_shard_is_the_first_field(kind: type[Event]) -> None:
    """Fields have the same order in all lines, so that lines are easy to compare."""
    names = re.findall(r"(\w+)=%s", LINES[kind].template)
    assert names
    assert "shard" not in names[1:]


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_no_value_can_forge_a_line(log: EventLog, kind: type[Event]) -> None:
    """Values from the lease table and from other members are escaped."""
    texts: dict[str, object] = {
        field.name: EVIL
        for field in fields(kind)
        if field.name not in {"position", "checkpoint", "start", "end", "gap", "parents", "children"}
        and not field.name.endswith(("_ms", "_behind"))
    }
    evil = Finding(code=EVIL, severity=Severity.NOTICE, text=EVIL, remedy=EVIL, shard=LeaseKey(EVIL))
    texts |= {"finding": evil} if "finding" in texts else {}
    texts |= {"findings": (evil,)} if "findings" in texts else {}
    log.observe(sample(kind, **texts))
    (line,) = log.lines()
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
def test_the_text_of_a_handlers_error_is_not_logged(log: EventLog, event: Event) -> None:
    """It may quote the record; only the type of the exception is logged."""
    log.observe(event)
    assert "secret" not in log.lines()[0]


def test_an_idle_healthy_worker_logs_nothing_at_info(log: EventLog) -> None:
    """No line at INFO means that the worker is healthy."""
    idle: list[Event] = [
        FleetRefreshed(4, 0, 4, 1),
        LeasesRenewed(4, 0, 12),
        ShardsSynced(4, 0),
        PageRead(SHARD, 0, 0, 0, 9),
        Checkpointed(SHARD, Position("7")),
    ]
    for event in idle:
        log.observe(event)
    assert log.lines(logging.INFO) == []
    assert len(log.lines()) == len(idle)


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
def test_the_level_depends_on_the_values(log: EventLog, event: Event, level: str) -> None:
    """A warning means that records are read twice or lost; a change of owner alone is INFO."""
    log.observe(event)
    assert log.levels() == [level]


def test_the_format_of_a_line(log: EventLog) -> None:
    """Operators rely on the format."""
    log.observe(taken(21_300))
    assert log.lines() == ["lease taken shard=shard-0 from=w-4 silent_ms=21300 counter=118 checkpoint=4957"]


@pytest.mark.parametrize(
    "event",
    [
        RowRejected("k", "leaseCounter: expected an integer"),
        ShardBlockedOnParents(SHARD, (ShardId("shard-9"),)),
    ],
)
def test_a_lasting_condition_is_logged_once_a_minute(log: EventLog, event: Event) -> None:
    """A condition that is reported at every refresh does not fill the log; the line has the number of repetitions."""
    for second in range(61):
        log.now_ms = second * 1_000
        log.observe(event)
    first, second_line = log.lines(logging.INFO)
    assert "times" not in first
    assert second_line.endswith("times=60")


def test_failing_reads_are_logged_after_half_a_minute(log: EventLog) -> None:
    """One lost response is normal; half a minute without a page is not."""
    failure = ReadFailed(SHARD, "no response", 500)
    for now_ms in (0, 20_000):
        log.now_ms = now_ms
        log.observe(failure)
    log.observe(PageRead(SHARD, 0, 0, 0, 9))
    for now_ms in (25_000, 40_000, 55_000):
        log.now_ms = now_ms
        log.observe(failure)
    assert log.lines(logging.WARNING) == ['read failed shard=shard-0 wait_ms=500 error="no response" times=3']


def test_many_bad_rows_need_bounded_memory_and_few_lines(log: EventLog) -> None:
    """A table full of invalid rows neither floods the log nor exhausts memory."""
    for number in range(3 * SUBJECTS_MAX):
        log.observe(RowRejected(f"junk-{number}", "bad"))
    assert len(log.lines(logging.WARNING)) == SUBJECTS_MAX + 1


def test_the_first_failure_of_a_handler_says_how_to_see_more(caplog: pytest.LogCaptureFixture) -> None:
    """Not every retry repeats it, and at DEBUG the traceback is there already."""
    first, retry = (
        HandlerFailed(SHARD, Position("1"), Position("2"), 1, attempt, "ValueError") for attempt in (1, 2)
    )
    log = EventLog(caplog)
    for level, hints in ((logging.INFO, [True, False]), (logging.DEBUG, [False, False])):
        caplog.clear()
        caplog.set_level(level, logger="leasehold")
        log.observe(first)
        log.observe(retry)
        assert ["--log-level debug" in line for line in log.lines()] == hints


def test_the_sentence_of_our_own_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It names cause and remedy, for example of a folder to which a handler of ours cannot write."""
    log = EventLog(caplog)
    sentence = "out: Permission denied: choose another folder"
    log.observe(HandlerFailed(SHARD, Position("1"), Position("2"), 1, 1, "ConfigError", sentence))
    (line,) = log.lines()
    assert line.endswith(f'error=ConfigError reason="{sentence}"')
