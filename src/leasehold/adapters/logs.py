"""Events as lines of the standard `logging`. Lines never contain a payload, a key or the text of a handler's
exception.

Levels:

* DEBUG    every poll, batch, checkpoint and heartbeat.
* INFO     ownership: a member started or stopped; a lease was created, taken, handed over, released, ended or deleted.
* WARNING  records are read twice or lost, were dead-lettered, or soon will be: a lease lost, a gap, a failing handler.
* ERROR    this worker stops.

A repeated event is logged at most once a minute per subject, with the number of repetitions. Failing reads are logged
only after half a minute of failures. Values from outside cannot forge a line: unprintable characters are escaped,
values with spaces are quoted, and long texts are truncated.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

from leasehold.core.events import (
    BatchHandled,
    Checkpointed,
    ConsumerFound,
    DeaggregationFailed,
    Event,
    FanOutRefused,
    FanOutResumed,
    FindingBegan,
    FindingEnded,
    FindingsReviewed,
    FleetDecided,
    FleetRefreshed,
    FleetUpgraded,
    GapFound,
    HandlerFailed,
    HandoffRequested,
    HandoffWithdrawn,
    IteratorExpired,
    KinesisCallsCounted,
    LeadershipEnded,
    LeadershipTaken,
    LeaseAssigned,
    LeaseDeleted,
    LeaseLost,
    LeaseReleased,
    LeaseRestarted,
    LeasesRenewed,
    LeaseTaken,
    MemberStarted,
    MemberStopped,
    OperationFailed,
    PageRead,
    ProcessorCalled,
    ReadFailed,
    ReadingStarted,
    ReadThrottled,
    RecordDeadLettered,
    RecordSkipped,
    RowIgnored,
    RowRecovered,
    RowRejected,
    ShardBlockedOnParents,
    ShardEnded,
    ShardsSynced,
    ShardStalled,
    StreamRecreated,
    StreamsChanged,
    Subscribed,
    SubscriptionEnded,
    SubscriptionLost,
    WorkerFailed,
)
from leasehold.core.finding import Severity

FLEET: Final = logging.getLogger("leasehold.fleet")
WORKER: Final = logging.getLogger("leasehold.worker")

TEXT_LENGTH_MAX: Final = 300
REPEAT_EVERY_MS: Final = 60_000
SUBJECTS_MAX: Final = 200

_ATTRIBUTE: Final = re.compile(r"\{([a-z_.]+)\}")
_TYPE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


class Line:
    """The log line of one event type. `{attribute}` stands for a value of the event, inserted only if the line is
    logged.
    """

    __slots__ = ("level", "logger", "repeated_template", "template", "values")

    def __init__(self, logger: logging.Logger, level: int, text: str) -> None:
        self.logger = logger
        self.level = level
        self.template = _ATTRIBUTE.sub("%s", text)
        self.repeated_template = f"{self.template} times=%s"
        getters = [attrgetter(name) for name in _ATTRIBUTE.findall(text)]
        self.values: Callable[[Event], list[Any]] = lambda event: [get(event) for get in getters]


DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

LINES: Final[Mapping[type[Event], Line]] = {
    # The fleet.
    MemberStarted: Line(
        FLEET, INFO, "member started worker={worker} application={application} stream={stream}"
    ),
    MemberStopped: Line(FLEET, INFO, "member stopped worker={worker} released={released}"),
    FleetRefreshed: Line(
        FLEET, DEBUG, "fleet refreshed leases={leases} unclaimed={unclaimed} mine={mine} workers={workers}"
    ),
    FleetDecided: Line(
        FLEET,
        DEBUG,
        "fleet decided leases={leases} workers={workers} expired={expired} left_free={left_free} assigned={assigned} "
        "handed_off={handed_off} failed={failed} time_ms={time_ms}",
    ),
    ShardsSynced: Line(FLEET, DEBUG, "shards synced shards={shards} created={created} stream={stream}"),
    RowRejected: Line(FLEET, WARNING, "row rejected key={key} problem={problem} consequence={consequence}"),
    StreamRecreated: Line(FLEET, ERROR, "stream recreated name={name} problem={problem}"),
    StreamsChanged: Line(FLEET, INFO, "streams changed added={added} removed={removed}"),
    LeaseRestarted: Line(
        FLEET, WARNING, "lease restarted at the oldest record key={key} checkpoint={checkpoint}"
    ),
    RowRecovered: Line(FLEET, INFO, "row recovered key={key}"),
    RowIgnored: Line(FLEET, INFO, "row ignored, it is not a lease key={key} problem={problem}"),
    LeaseTaken: Line(
        FLEET,
        INFO,
        "lease taken shard={shard_key} from={taken_from} silent_ms={silent_ms} counter={counter} "
        "checkpoint={checkpoint}",
    ),
    HandoffRequested: Line(FLEET, INFO, "handoff requested key={key} owner={owner} to={to}"),
    HandoffWithdrawn: Line(FLEET, INFO, "handoff withdrawn key={key} owner={owner} to={to}"),
    LeaseLost: Line(FLEET, WARNING, "lease lost shard={shard_key} owner={owner} reason={reason}"),
    LeaseReleased: Line(FLEET, INFO, "lease released shard={shard_key} to={to}"),
    LeasesRenewed: Line(FLEET, DEBUG, "leases renewed renewed={renewed} failed={failed} time_ms={time_ms}"),
    ShardStalled: Line(FLEET, WARNING, "shard stalled shard={shard_key} idle_ms={idle_ms}"),
    ShardBlockedOnParents: Line(FLEET, INFO, "shard blocked on parents shard={shard_key} parents={parents}"),
    ShardEnded: Line(FLEET, INFO, "shard ended shard={shard_key} children={children}"),
    LeaseAssigned: Line(FLEET, INFO, "lease assigned key={key} from={taken_from} to={to}"),
    LeadershipTaken: Line(FLEET, INFO, "leadership taken worker={worker} from={taken_from}"),
    LeadershipEnded: Line(FLEET, INFO, "leadership ended worker={worker} reason={reason}"),
    FleetUpgraded: Line(FLEET, INFO, "fleet upgraded from KCL 2.x to leader assignment worker={worker}"),
    LeaseDeleted: Line(FLEET, INFO, "lease deleted key={key}"),
    OperationFailed: Line(
        FLEET, WARNING, "operation failed, will be retried operation={operation} error={error}"
    ),
    # Reading and handling.
    ReadingStarted: Line(WORKER, DEBUG, "reading started shard={shard_key} position={position}"),
    PageRead: Line(
        WORKER,
        DEBUG,
        "page read shard={shard_key} records={records} bytes={size_bytes} behind_ms={millis_behind} "
        "time_ms={time_ms}",
    ),
    ReadThrottled: Line(WORKER, WARNING, "read throttled shard={shard_key} wait_ms={wait_ms}"),
    ReadFailed: Line(WORKER, WARNING, "read failed shard={shard_key} wait_ms={wait_ms} error={error}"),
    IteratorExpired: Line(WORKER, DEBUG, "iterator expired shard={shard_key}"),
    ConsumerFound: Line(WORKER, INFO, "consumer found stream={name} consumer={consumer} arn={arn}"),
    FanOutRefused: Line(
        WORKER, WARNING, "fan-out refused, the stream is polled stream={name} problem={problem}"
    ),
    FanOutResumed: Line(WORKER, INFO, "fan-out resumed, the stream is no longer polled stream={name}"),
    Subscribed: Line(
        WORKER,
        DEBUG,
        "subscribed shard={shard_key} start={start.kind.name} sequence_number={start.sequence_number}",
    ),
    SubscriptionEnded: Line(
        WORKER,
        DEBUG,
        "subscription ended, will be renewed shard={shard_key} events={events} time_ms={time_ms}",
    ),
    SubscriptionLost: Line(
        WORKER, INFO, "subscription lost, will be renewed shard={shard_key} wait_ms={wait_ms} reason={reason}"
    ),
    GapFound: Line(
        WORKER,
        WARNING,
        "gap found, records may be missing shard={shard_key} after={gap.after} resumes_at={gap.resumes_at}",
    ),
    DeaggregationFailed: Line(
        WORKER,
        WARNING,
        "deaggregation failed shard={shard_key} position={position} dropped={dropped} reason={reason}",
    ),
    BatchHandled: Line(
        WORKER,
        DEBUG,
        "batch handled shard={shard_key} position={end} records={records} bytes={size_bytes} "
        "behind_ms={millis_behind} time_ms={time_ms}",
    ),
    HandlerFailed: Line(
        WORKER,
        WARNING,
        "handler failed shard={shard_key} start={start} end={end} records={records} attempt={attempt} "
        "error={error}",
    ),
    RecordDeadLettered: Line(
        WORKER, WARNING, "record dead-lettered shard={shard_key} position={position} error={error}"
    ),
    RecordSkipped: Line(
        WORKER, WARNING, "record skipped shard={shard_key} position={position} error={error}"
    ),
    Checkpointed: Line(WORKER, DEBUG, "checkpointed shard={shard_key} position={position}"),
    ProcessorCalled: Line(
        WORKER, DEBUG, "processor called shard={shard_key} method={method} time_ms={time_ms}"
    ),
    KinesisCallsCounted: Line(FLEET, DEBUG, "kinesis calls counted calls={counts} time_ms={time_ms}"),
    FindingBegan: Line(
        FLEET,
        WARNING,
        "finding began shard={finding.shard} code={finding.code} subject={finding.subject} "
        "severity={finding.severity.value} text={finding.text} remedy={finding.remedy}",
    ),
    FindingEnded: Line(
        FLEET,
        INFO,
        "finding ended shard={finding.shard} code={finding.code} subject={finding.subject} lasted_ms={lasted_ms}",
    ),
    FindingsReviewed: Line(FLEET, DEBUG, "findings reviewed findings={codes}"),
    WorkerFailed: Line(WORKER, ERROR, "worker failed and stops error={error}"),
}

# The error text of these events comes from user code; only its type is logged.
_USER_CODE_ERRORS: Final = (HandlerFailed, RecordDeadLettered, RecordSkipped, WorkerFailed)


# The message of the handler's error may contain a payload, so the line has only its type.
_HOW_TO_SEE_MORE: Final = (
    ' more="for the traceback, log leasehold.worker at DEBUG (leasehold run --log-level debug)"'
)
# The sentence of an error of this package, which contains no payload.
_REASON: Final = " reason=%s"


@dataclass(frozen=True, slots=True)
class OtherLevel:
    """Another level of an event type, for some of its values. `text` says for which."""

    level: int
    text: str
    applies: Callable[[Any], bool]


# For example, the owner of a silent lease has failed: the records since its checkpoint will be processed again.
OTHER_LEVELS: Final[Mapping[type[Event], OtherLevel]] = {
    LeaseTaken: OtherLevel(WARNING, "if its owner was silent", lambda event: event.silent_ms is not None),
    ShardsSynced: OtherLevel(INFO, "if leases were created", lambda event: bool(event.created)),
    StreamRecreated: OtherLevel(WARNING, "if the member goes on", lambda event: not event.is_fatal),
    FindingBegan: OtherLevel(INFO, "for a notice", lambda event: event.finding.severity is Severity.NOTICE),
    DeaggregationFailed: OtherLevel(DEBUG, "if nothing was dropped", lambda event: event.dropped == 0),
}


def _level(event: Event, line: Line) -> int:
    other = OTHER_LEVELS.get(type(event))
    return other.level if other is not None and other.applies(event) else line.level


READ_FAILURES_LOGGED_AFTER_MS: Final = 30_000
# Events that repeat while a condition lasts: the attribute that names their subject.
REPEATED: Final[Mapping[type[Event], str]] = {
    RowRejected: "key",
    ShardBlockedOnParents: "shard_key",
    DeaggregationFailed: "shard_key",
    SubscriptionLost: "shard_key",
    ReadFailed: "shard_key",
    ReadThrottled: "shard_key",
    OperationFailed: "operation",
}


def first_line_delay_ms(kind: type[Event]) -> int:
    """How long an event type must repeat before its first line."""
    return READ_FAILURES_LOGGED_AFTER_MS if kind in {ReadFailed, ReadThrottled} else 0


class LogObserver:
    """An observer that writes log lines. `now_ms` is the member's monotonic clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._streaks: dict[tuple[type[Event], str], _Streak] = {}

    def __call__(self, event: Event) -> None:
        """Log one event, unless it is a repetition."""
        line = LINES[type(event)]
        level, times = _level(event, line), 1
        if isinstance(event, PageRead):
            self._reset_read_failures(event)
        elif isinstance(event, RowRecovered):
            self._streaks.pop((RowRejected, event.key), None)
        elif level > DEBUG and (subject := REPEATED.get(type(event))):
            times = self._count_if_due(type(event), getattr(event, subject), first_line_delay_ms(type(event)))
        if not times:
            level = DEBUG
        if not line.logger.isEnabledFor(level):
            return
        values = map(format_value, _values(event, line))
        if times > 1:
            line.logger.log(level, line.repeated_template, *values, times)
        elif isinstance(event, HandlerFailed) and event.reason:
            template = line.template + _REASON
            line.logger.log(level, template, *values, format_value(event.reason))
        elif isinstance(event, HandlerFailed) and event.attempt == 1 and not line.logger.isEnabledFor(DEBUG):
            template = line.template + _HOW_TO_SEE_MORE
            line.logger.log(level, template, *values)
        else:
            line.logger.log(level, line.template, *values)

    def _count_if_due(self, kind: type[Event], subject: str, delay_ms: int) -> int:
        """The number of events that a line stands for; 0 if no line is due."""
        now_ms = self._now_ms()
        key = (kind, subject)
        if key not in self._streaks and len(self._streaks) >= SUBJECTS_MAX:
            key = (kind, "")  # a malicious table may hold any number of subjects
        streak = self._streaks.setdefault(key, _Streak(log_at_ms=now_ms + delay_ms))
        streak.unlogged += 1
        if now_ms < streak.log_at_ms:
            return 0
        times, streak.unlogged = streak.unlogged, 0
        streak.log_at_ms = now_ms + REPEAT_EVERY_MS
        return times

    def _reset_read_failures(self, page: PageRead) -> None:
        for kind in (ReadFailed, ReadThrottled):
            self._streaks.pop((kind, page.shard_key), None)


@dataclass(slots=True)
class _Streak:
    log_at_ms: int
    unlogged: int = 0


def _values(event: Event, line: Line) -> list[Any]:
    if isinstance(event, _USER_CODE_ERRORS):
        event = replace(event, error=_type_name(event.error))
    return line.values(event)


def _type_name(error: str) -> str:
    found = _TYPE_NAME.match(error)
    return found.group() if found else "-"


def format_value(value: object) -> str:
    r"""A value as it appears in a log line.

    >>> format_value(None), format_value(7), format_value(("shard-1", "shard-2"))
    ('-', '7', 'shard-1,shard-2')
    >>> format_value("w-1 level=ERROR"), format_value("two\nlines")
    ('"w-1 level=ERROR"', 'two\\nlines')
    """
    if value is None or value == ():
        return "-"
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    if len(text) > TEXT_LENGTH_MAX:
        text = f"{text[:TEXT_LENGTH_MAX]}..."
    if not text.isprintable():
        text = text.encode("unicode_escape").decode("ascii")
    if " " in text or '"' in text:
        return '"' + text.replace('"', "'") + '"'
    return text
