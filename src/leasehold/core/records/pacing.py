"""When to ask a shard again, and for how much. Takes times, sizes and a number between 0 and 1 for chance; asks nobody
and remembers nothing.

Kinesis gives each shard 5 calls and 2 MB a second, shared by all who poll it, and up to 10 MB in one answer: which it
makes up for by refusing everything for the next five seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from leasehold.config.settings import ReadSettings, milliseconds
from leasehold.core.backoff import backoff_ms

# Until the size of a record is known: few enough that records of 200 kB do not take more than a second's worth.
FIRST_CALL_RECORDS: Final = 10
# Smaller calls would cost more than they bring, so a full buffer is waited for instead.
CALL_BYTES_MIN: Final = 256 * 1024
# Idle shards that began together drift apart by this much either way.
IDLE_SPREAD: Final = 0.1
BACKOFF_FIRST_MS: Final = 500
BACKOFF_MAX_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class CallSize:
    """How many records to ask for, and how many bytes they will probably be."""

    records_max: int
    expected_bytes: int


def call_size(
    record_bytes: int | None, free_bytes: int, settings: ReadSettings, *, wanted_records: int | None = None
) -> CallSize:
    """What to ask a shard for, when its records last weighed `record_bytes` each and the buffer has `free_bytes` left.

    A second's worth at most, so that no answer makes the shard refuse the next call, and a quarter of the buffer, so
    that no shard has it to itself. Less when room is short, or when no more than `wanted_records` would be used, but
    always one record.

    >>> call_size(1_000, 50_000_000, ReadSettings())
    CallSize(records_max=2000, expected_bytes=2000000)
    """
    most_bytes = min(settings.bytes_per_second, settings.buffer_bytes // 4)
    if record_bytes is None:
        return CallSize(min(FIRST_CALL_RECORDS, settings.records_per_call), most_bytes)
    call_bytes = min(most_bytes, max(free_bytes, CALL_BYTES_MIN))
    records = min(settings.records_per_call, call_bytes // max(1, record_bytes))
    records = max(1, records if wanted_records is None else min(records, wanted_records))
    return CallSize(records, records * record_bytes)


def next_call_ms(
    asked_ms: int, answer_bytes: int, jitter: float, settings: ReadSettings, *, is_at_tip: bool
) -> int:
    """When a shard that was asked at `asked_ms`, and gave so many bytes, should be asked again.

    As soon as its limits allow while there is more to read, however little came: a stretch without records is crossed
    in empty answers. At the tip, once in a while.
    """
    wait_ms = max(1000 / settings.calls_per_second, 1000 * answer_bytes / settings.bytes_per_second)
    if is_at_tip:
        spread = 1 + IDLE_SPREAD * (2 * jitter - 1)
        wait_ms = max(wait_ms, milliseconds(settings.idle_poll_every) * spread)
    return asked_ms + math.ceil(wait_ms)


def retry_wait_ms(failures: int, jitter: float, settings: ReadSettings) -> int:
    """How long to leave a shard alone after so many failures in a row, the first being 1.

    On top of the pause that any two calls need comes a back-off with full jitter: other readers of the shard were
    probably refused at the same moment.

    >>> [retry_wait_ms(failures, 1.0, ReadSettings()) for failures in (1, 2, 3, 100)]
    [700, 1200, 2200, 10200]
    """
    assert failures >= 1
    wait_ms = backoff_ms(failures - 1, jitter, first_ms=BACKOFF_FIRST_MS, max_ms=BACKOFF_MAX_MS)
    return math.ceil(1000 / settings.calls_per_second) + wait_ms
