"""Subscriptions of enhanced fan-out: where to start them, how long to wait for an event, and when to subscribe again.

Kinesis sends an event about every five seconds, even without records, and ends a subscription after five minutes. A
consumer has at most one subscription for each shard: a new one replaces the old one, unless that one is younger than
five seconds. Then Kinesis refuses the new one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from leasehold.core.backoff import backoff_ms
from leasehold.core.position import Position, sequence_value
from leasehold.core.records.iterators import IteratorKind, IteratorStart

# Four events are missing. The connection is broken although it looks open, or the service has forgotten us.
SILENCE_MAX_MS: Final = 20_000
# While parts of an event arrive, the connection is only slow. No subscription lasts longer than this.
EVENT_TIME_MAX_MS: Final = 300_000
# A subscription cannot be replaced before, with a little room for the difference between two clocks.
REPLACEABLE_AFTER_MS: Final = 5_200
# SubscribeToShard calls of one process: a thousand shards subscribe within 20 seconds, and renew as spread out.
CALLS_PER_SECOND: Final = 50
# Two readers that replaced or refused each other do not meet again at the same moment.
IN_USE_SPREAD_MS: Final = 1_000
BACKOFF_FIRST_MS: Final = 500
BACKOFF_MAX_MS: Final = 10_000
# A consumer is created or deleted within seconds. After this time, the wait for it is reported, and begins again.
STATUS_WAIT_MAX_MS: Final = 60_000
# A stream that is polled because fan-out was refused: a member tries fan-out again after 5 to 10 minutes.
REFUSED_RETRY_MS: Final = 300_000
REFUSED_SPREAD_MS: Final = 300_000
# So many accepted subscriptions in a row without an event: something on the way holds events back, or breaks them.
EVENTLESS_MAX: Final = 3
POLL_INSTEAD_FIRST_MS: Final = 60_000
POLL_INSTEAD_MAX_MS: Final = 600_000
# RegisterStreamConsumer is refused in the same way if it is called too often and if the stream has all its consumers.
REGISTER_ATTEMPTS_MAX: Final = 5
CONSUMERS_MAX: Final = 20  # of one stream; some accounts may have more


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """How far a shard was read.

    `position` is the last record that was read, or the start if `has_read` is False. `arrival_ms` is when that record
    arrived. `continuation` is the last one that a subscription sent.
    """

    position: Position
    has_read: bool
    arrival_ms: int | None = None
    continuation: str | None = None

    def with_continuation(self, continuation: str | None) -> ReadProgress:
        """The progress after an event with this continuation."""
        return replace(self, continuation=continuation)


def subscription_start(progress: ReadProgress) -> IteratorStart | None:
    """Where to subscribe again, as the last event says. None if there was no event: start as for an iterator.

    The continuation moves on while no records arrive, so that the service need not search from an old record. It may
    be the number of the last record that was read, or a number between that and the next record. So the next
    subscription begins *at* it, and a record that was read already is dropped. If none was read, the record at the
    continuation lies before the start (LATEST, or a timestamp), and the next subscription begins after it.

    >>> subscription_start(ReadProgress(Position("100"), has_read=True, continuation="120"))
    IteratorStart(kind=<IteratorKind.AT_SEQUENCE_NUMBER: 4>, sequence_number='120', timestamp_ms=None)
    """
    if progress.continuation is None:
        return None
    if not progress.has_read:
        return IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=progress.continuation)
    last, continuation = progress.position.sequence_number, progress.continuation
    furthest = continuation if sequence_value(continuation) > sequence_value(last) else last
    return IteratorStart(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=furthest)


def required_first_record(
    progress: ReadProgress, start: IteratorStart, wall_ms: int, *, keeps_records_ms: int
) -> Position | None:
    """The record with which a subscription must begin: the last one that was read, if the stream still has it.

    If the subscription begins with a later record, it has skipped records, or sends its events in a wrong order.
    """
    is_at_last = (
        progress.has_read
        and start.kind is IteratorKind.AT_SEQUENCE_NUMBER
        and start.sequence_number == progress.position.sequence_number
    )
    if not is_at_last or progress.arrival_ms is None:
        return None
    return progress.position if wall_ms - progress.arrival_ms < keeps_records_ms else None


def may_subscribe_ms(subscribed_ms: int | None, now_ms: int) -> int:
    """When this process may subscribe to a shard to which it last subscribed at `subscribed_ms`.

    >>> may_subscribe_ms(None, 7_000), may_subscribe_ms(6_000, 7_000), may_subscribe_ms(0, 300_000)
    (7000, 11200, 300000)
    """
    return now_ms if subscribed_ms is None else max(now_ms, subscribed_ms + REPLACEABLE_AFTER_MS)


def next_call_slot_ms(last_slot_ms: int | None, now_ms: int) -> int:
    """When the next SubscribeToShard call of this process may be sent, if the one before has `last_slot_ms`.

    >>> next_call_slot_ms(None, 1_000), next_call_slot_ms(1_000, 1_000), next_call_slot_ms(1_000, 5_000)
    (1000, 1020, 5000)
    """
    return now_ms if last_slot_ms is None else max(now_ms, last_slot_ms + 1000 // CALLS_PER_SECOND)


def resubscribe_wait_ms(failures: int, jitter: float, *, is_in_use: bool) -> int:
    """How long to wait after so many subscriptions that failed before their first event, the first being 1.

    `is_in_use`: another subscription exists, or has replaced ours. It cannot be replaced for five seconds.

    >>> resubscribe_wait_ms(1, 0.5, is_in_use=True), resubscribe_wait_ms(3, 0.5, is_in_use=False)
    (5700, 1000)
    """
    if is_in_use:
        return REPLACEABLE_AFTER_MS + int(IN_USE_SPREAD_MS * jitter)
    return backoff_ms(max(0, failures - 1), jitter, first_ms=BACKOFF_FIRST_MS, max_ms=BACKOFF_MAX_MS)


def poll_instead_ms(eventless: int) -> int:
    """How long to poll a shard after so many accepted subscriptions in a row that ended without an event.

    >>> [poll_instead_ms(eventless) for eventless in (0, 2, 3, 4, 9, 5_000)]
    [0, 0, 60000, 120000, 600000, 600000]
    """
    if eventless < EVENTLESS_MAX:
        return 0
    doublings = min(eventless - EVENTLESS_MAX, 10)
    return min(POLL_INSTEAD_FIRST_MS << doublings, POLL_INSTEAD_MAX_MS)


def refused_retry_ms(now_ms: int, jitter: float) -> int:
    """When to try fan-out again for a stream that is polled because fan-out was refused.

    >>> refused_retry_ms(1_000, 0.0), refused_retry_ms(1_000, 0.5)
    (301000, 451000)
    """
    return now_ms + REFUSED_RETRY_MS + int(REFUSED_SPREAD_MS * jitter)


class RegistrationStep(Enum):
    """What to do next until the consumer of a stream can subscribe."""

    USE = auto()
    WAIT = auto()
    REGISTER = auto()
    REFUSE = auto()  # it does not exist, and must not be registered


def next_registration_step(status: str | None, *, may_register: bool) -> RegistrationStep:
    """What to do with a consumer of this status; None if it does not exist.

    >>> next_registration_step("ACTIVE", may_register=True), next_registration_step("DELETING", may_register=True)
    (<RegistrationStep.USE: 1>, <RegistrationStep.WAIT: 2>)
    """
    if status is None:
        return RegistrationStep.REGISTER if may_register else RegistrationStep.REFUSE
    return RegistrationStep.USE if status == "ACTIVE" else RegistrationStep.WAIT
