"""When to read a shard again, and how many records to request. Pure functions of times, sizes and a random number.

Kinesis allows 5 calls and 2 MB per second and shard, shared by all consumers that poll. One response may hold up to
10 MB; then Kinesis throttles all reads for the next five seconds.

A worker reads a shard all the time, so its calls are of one second's quota at most. A Spark task reads one slice and
then leaves the shard to the sink, the log and the next plan. So it gets the whole slice at once, if Kinesis allows so
large a response, and the next slice waits until the quota is there again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from leasehold.config.settings import ReadSettings, milliseconds
from leasehold.core.backoff import backoff_ms

# The first request, before the size of a record is known: ten records of 200 kB are one second's quota.
FIRST_CALL_RECORDS: Final = 10
# Smaller requests are not worth their cost. The reader waits until the buffer has this much room.
CALL_BYTES_MIN: Final = 256 * 1024
# What Kinesis returns at most, in one response. The quota of a shard for it takes five seconds.
RESPONSE_BYTES_MAX: Final = 10_000_000
QUOTA_WAIT_MAX_MS: Final = 5_000
# The polls of idle shards are spread by this fraction, so that they do not stay in step.
IDLE_SPREAD: Final = 0.1
# They begin at multiples of this time, together with those of other shards: a process that wakes up 20 times a second
# needs less processor time than one that wakes up for every shard.
IDLE_TICK_MS: Final = 50
BACKOFF_FIRST_MS: Final = 500
BACKOFF_MAX_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class CallSize:
    """How many records to request, and their expected size."""

    records_max: int
    expected_bytes: int


def call_size(
    record_bytes: int | None,
    free_bytes: int,
    settings: ReadSettings,
    *,
    wanted_records: int | None = None,
    in_one_call: bool = False,
) -> CallSize:
    """How many records to request, if the last ones had `record_bytes` each and the buffer has `free_bytes` left.

    At most one second's quota, so that the next request is not throttled, and at most a quarter of the buffer, so
    that one shard cannot fill it. Fewer if the buffer is short of room or only `wanted_records` are needed, but at
    least one. With `in_one_call`, all wanted records, if they are no more than a response may hold and than the quota
    of five seconds.

    >>> call_size(1_000, 50_000_000, ReadSettings())
    CallSize(records_max=2000, expected_bytes=2000000)
    >>> call_size(1_000, 50_000_000, ReadSettings(), wanted_records=3_000, in_one_call=True)
    CallSize(records_max=3000, expected_bytes=3000000)
    """
    quota = settings.bytes_per_second
    wanted_bytes = (wanted_records or 0) * (record_bytes or 0) if in_one_call else 0
    burst = min(wanted_bytes, RESPONSE_BYTES_MAX, quota * QUOTA_WAIT_MAX_MS // 1000)
    max_bytes = min(max(quota, burst), settings.buffer_bytes // 4)
    if record_bytes is None:
        return CallSize(min(FIRST_CALL_RECORDS, settings.records_per_call), max_bytes)
    call_bytes = min(max_bytes, max(free_bytes, CALL_BYTES_MIN))
    records = min(settings.records_per_call, call_bytes // max(1, record_bytes))
    records = max(1, records if wanted_records is None else min(records, wanted_records))
    return CallSize(records, records * record_bytes)


def next_call_ms(
    requested_ms: int, response_bytes: int, jitter: float, settings: ReadSettings, *, is_at_tip: bool
) -> int:
    """When to read a shard again that was read at `requested_ms` and returned `response_bytes`.

    As soon as the limits allow while there is more to read, even after an empty response: Kinesis returns empty pages
    for a stretch without records. At the tip, once per `idle_poll_every`, at a tick.
    """
    pause_ms = math.ceil(1000 / settings.calls_per_second)
    allowed_ms = max(requested_ms + pause_ms, quota_ms(requested_ms, response_bytes, settings))
    if not is_at_tip:
        return allowed_ms
    spread = 1 + IDLE_SPREAD * (2 * jitter - 1)
    due_ms = max(allowed_ms, requested_ms + math.ceil(milliseconds(settings.idle_poll_every) * spread))
    tick_ms = round(due_ms / IDLE_TICK_MS) * IDLE_TICK_MS
    return tick_ms if tick_ms >= allowed_ms else tick_ms + IDLE_TICK_MS


def quota_ms(requested_ms: int, response_bytes: int, settings: ReadSettings) -> int:
    """When a shard has its quota of bytes again, after a response of this size.

    >>> quota_ms(1_000, 4_000_000, ReadSettings())
    3000
    """
    return requested_ms + math.ceil(1000 * response_bytes / settings.bytes_per_second)


def quota_wait_ms(quota_at_ms: int | None, now_ms: int) -> int:
    """How long to wait for a quota that is there again at `quota_at_ms`, if that is known. Both are wall-clock times.

    At most as long as Kinesis throttles a shard: the time may come from a machine with another clock.

    >>> [quota_wait_ms(at, 10_000) for at in (None, 9_000, 10_700, 99_000)]
    [0, 0, 700, 5000]
    """
    return 0 if quota_at_ms is None else min(max(0, quota_at_ms - now_ms), QUOTA_WAIT_MAX_MS)


def retry_wait_ms(failures: int, jitter: float, settings: ReadSettings) -> int:
    """How long to wait after so many failed reads in a row, the first being 1.

    The minimum pause between two calls plus a backoff with full jitter, because other consumers of the shard were
    probably throttled at the same moment.

    >>> [retry_wait_ms(failures, 1.0, ReadSettings()) for failures in (1, 2, 3, 100)]
    [700, 1200, 2200, 10200]
    """
    assert failures >= 1
    wait_ms = backoff_ms(failures - 1, jitter, first_ms=BACKOFF_FIRST_MS, max_ms=BACKOFF_MAX_MS)
    return math.ceil(1000 / settings.calls_per_second) + wait_ms
