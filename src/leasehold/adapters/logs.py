"""Events as lines of the standard `logging`: quiet while all is well, and never a payload, a key or a handler's words.

Levels:

* DEBUG    every poll, batch, checkpoint and heartbeat.
* INFO     ownership: a member came or went; a lease was created, taken, handed over, released, ended or deleted.
* WARNING  records are read twice or lost, were put aside, or soon will be: a lease lost, a gap, a failing handler.
* ERROR    this worker stops.

What may repeat is told at most once a minute for one subject, with the number of times; reads that fail are told only
once they have failed for half a minute. Values from outside cannot forge a line: what is not printable is escaped,
what holds spaces is quoted, and long texts are cut.
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
    DeaggregationFailed,
    Event,
    FleetRefreshed,
    FleetUpgraded,
    GapFound,
    HandlerFailed,
    HandoffRequested,
    IteratorExpired,
    LeadershipEnded,
    LeadershipTaken,
    LeaseAssigned,
    LeaseDeleted,
    LeaseLost,
    LeaseReleased,
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
    RowRejected,
    ShardBlockedOnParents,
    ShardEnded,
    ShardsSynced,
    ShardStalled,
    WorkerFailed,
)

FLEET: Final = logging.getLogger("leasehold.fleet")
WORKER: Final = logging.getLogger("leasehold.worker")

TEXT_LENGTH_MAX: Final = 300
TOLD_EVERY_MS: Final = 60_000
SUBJECTS_MAX: Final = 200

_ATTRIBUTE: Final = re.compile(r"\{([a-z_.]+)\}")
_TYPE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


class Line:
    """How one kind of event is told: `{attribute}` stands for a value of the event, filled in only when it is told."""

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
        FLEET, DEBUG, "fleet seen leases={leases} unclaimed={unclaimed} mine={mine} workers={workers}"
    ),
    ShardsSynced: Line(FLEET, DEBUG, "shards synced shards={shards} created={created} stream={stream}"),
    RowRejected: Line(FLEET, WARNING, "row rejected key={key} problem={problem}"),
    LeaseTaken: Line(
        FLEET,
        INFO,
        "lease taken shard={shard_key} from={taken_from} silent_ms={silent_ms} counter={counter} "
        "checkpoint={checkpoint}",
    ),
    HandoffRequested: Line(FLEET, INFO, "handoff asked key={key} owner={owner} to={to}"),
    LeaseLost: Line(FLEET, WARNING, "lease lost shard={shard_key} owner={owner} reason={reason}"),
    LeaseReleased: Line(FLEET, INFO, "lease released shard={shard_key} to={to}"),
    LeasesRenewed: Line(FLEET, DEBUG, "leases renewed renewed={renewed} failed={failed} time_ms={time_ms}"),
    ShardStalled: Line(FLEET, WARNING, "shard stalled shard={shard_key} idle_ms={idle_ms}"),
    ShardBlockedOnParents: Line(FLEET, INFO, "parents awaited shard={shard_key} parents={parents}"),
    ShardEnded: Line(FLEET, INFO, "shard ended shard={shard_key} children={children}"),
    LeaseAssigned: Line(FLEET, INFO, "lease assigned key={key} from={taken_from} to={to}"),
    LeadershipTaken: Line(FLEET, INFO, "leadership taken worker={worker} from={taken_from}"),
    LeadershipEnded: Line(FLEET, INFO, "leadership ended worker={worker} reason={reason}"),
    FleetUpgraded: Line(
        FLEET, INFO, "fleet upgraded from KCL 2.x, it has a leader from now on worker={worker}"
    ),
    LeaseDeleted: Line(FLEET, INFO, "lease deleted key={key}"),
    OperationFailed: Line(
        FLEET, WARNING, "operation failed, will be tried again operation={operation} error={error}"
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
    GapFound: Line(
        WORKER,
        WARNING,
        "gap found, records may be missing shard={shard_key} after={gap.after} resumes_at={gap.resumes_at}",
    ),
    DeaggregationFailed: Line(
        WORKER,
        WARNING,
        "aggregate trouble shard={shard_key} position={position} dropped={dropped} reason={reason}",
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
    WorkerFailed: Line(WORKER, ERROR, "worker failed, it stops error={error}"),
}

# Whose text comes from user code: only its type is told.
_STRANGERS_ERRORS: Final = (HandlerFailed, RecordDeadLettered, RecordSkipped, WorkerFailed)


def _level(event: Event, line: Line) -> int:
    """The level of a line, where the kind of event alone does not decide it."""
    match event:
        case LeaseTaken(silent_ms=int()):
            return WARNING  # its owner died; what it did since the checkpoint will be done again
        case ShardsSynced(created=created) if created:
            return INFO
        case DeaggregationFailed(dropped=0):
            return DEBUG  # delivered as it came
        case _:
            return line.level


def _repeated(event: Event) -> tuple[str, int] | None:
    """For events that repeat while a state lasts: what they are about, and how long it may last untold."""
    match event:
        case RowRejected(key=key):
            return key, 0
        case ShardBlockedOnParents() | DeaggregationFailed():
            return event.shard_key, 0
        case ReadFailed() | ReadThrottled():
            return event.shard_key, 30_000
        case OperationFailed(operation=operation):
            return operation, 0
        case _:
            return None


class LogObserver:
    """An observer that writes log lines. `now_ms` is the member's monotonic clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._streaks: dict[tuple[type[Event], str], _Streak] = {}

    def __call__(self, event: Event) -> None:
        """Tell one event, or keep quiet."""
        line = LINES[type(event)]
        level, times = _level(event, line), 1
        if isinstance(event, PageRead):
            self._forget_failed_reads(event)
        elif level > DEBUG and (repeated := _repeated(event)):
            times = self._times_to_tell(type(event), *repeated)
        if not times:
            level = DEBUG
        if not line.logger.isEnabledFor(level):
            return
        values = map(format_value, _values(event, line))
        if times > 1:
            line.logger.log(level, line.repeated_template, *values, times)
        else:
            line.logger.log(level, line.template, *values)

    def _times_to_tell(self, kind: type[Event], subject: str, patience_ms: int) -> int:
        """How many events a line stands for; 0 if this is not the time for one."""
        now_ms = self._now_ms()
        key = (kind, subject)
        if key not in self._streaks and len(self._streaks) >= SUBJECTS_MAX:
            key = (kind, "")  # a hostile table may hold any number of subjects
        streak = self._streaks.setdefault(key, _Streak(tell_at_ms=now_ms + patience_ms))
        streak.untold += 1
        if now_ms < streak.tell_at_ms:
            return 0
        times, streak.untold = streak.untold, 0
        streak.tell_at_ms = now_ms + TOLD_EVERY_MS
        return times

    def _forget_failed_reads(self, page: PageRead) -> None:
        for kind in (ReadFailed, ReadThrottled):
            self._streaks.pop((kind, page.shard_key), None)


@dataclass(slots=True)
class _Streak:
    tell_at_ms: int
    untold: int = 0


def _values(event: Event, line: Line) -> list[Any]:
    if isinstance(event, _STRANGERS_ERRORS):
        event = replace(event, error=_type_name(event.error))
    return line.values(event)


def _type_name(error: str) -> str:
    found = _TYPE_NAME.match(error)
    return found.group() if found else "-"


def format_value(value: object) -> str:
    r"""A value as it may stand in a line.

    >>> format_value(None), format_value(7), format_value(("shard-1", "shard-2")), format_value("w-1 level=ERROR"), format_value("two\nlines")
    ('-', '7', 'shard-1,shard-2', '"w-1 level=ERROR"', 'two\\nlines')
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
