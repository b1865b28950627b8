"""Decides what follows when a handler raises: retry, bisect the batch, or call the record poison.

A failed batch is retried whole, with growing waits. If that does not help, it is bisected, and each half is tried once,
in order. A half that succeeds is done and is never delivered again; a half that fails is bisected further. A single
record is retried as often as a whole batch before it is called poison, so that a short outage of a database during the
search does not condemn a sound record.

Prepared records are retried together until they succeed, whichever attempt prepared them. Their effect may exist: the
effect of a half would be another one, with the same records, and so would a dead letter. Only a setting that stops the
shard or the worker ends the retries, because it leaves the records as they are.

This module has no effects and knows neither records nor handlers: it works on index ranges of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from leasehold.config.settings import milliseconds
from leasehold.core.backoff import backoff_ms
from leasehold.worker.settings import ErrorSettings, OnPoison

_STOPS: Final = frozenset({OnPoison.STOP_SHARD, OnPoison.STOP_WORKER})


@dataclass(frozen=True, slots=True)
class RetryRange:
    """Records `first` to `stop` (exclusive) of a batch, to be tried for the `attempt`-th time."""

    first: int
    stop: int
    attempt: int = 1
    is_whole_batch: bool = True
    is_prepared: bool = False  # an attempt at these records has prepared a checkpoint: their effect may exist

    def __len__(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True, slots=True)
class Retry:
    """Deliver the same records again after a wait."""

    records: RetryRange
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Bisect:
    """Deliver the two halves, in this order."""

    first: RetryRange
    second: RetryRange


@dataclass(frozen=True, slots=True)
class Poison:
    """These records cannot be handled. The setting `on_poison` says what to do with them."""


def decide_after_failure(failed: RetryRange, settings: ErrorSettings, draw: float) -> Retry | Bisect | Poison:
    """Decide what follows a failed attempt. `draw` in [0, 1) randomizes the wait.

    >>> decide_after_failure(RetryRange(0, 5, attempt=6), ErrorSettings(retries=5), 0.5).first
    RetryRange(first=0, stop=2, attempt=1, is_whole_batch=False, is_prepared=False)
    """
    may_split = len(failed) > 1 and not failed.is_prepared
    attempts_max = 1 if may_split and not failed.is_whole_batch else 1 + settings.retries
    if failed.attempt < attempts_max:
        return _retry(failed, settings, draw)
    if may_split and settings.bisect:
        middle = failed.first + len(failed) // 2
        return Bisect(
            RetryRange(failed.first, middle, is_whole_batch=False),
            RetryRange(middle, failed.stop, is_whole_batch=False),
        )
    if settings.poison is OnPoison.HOLD or (failed.is_prepared and settings.poison not in _STOPS):
        return _retry(failed, settings, draw)
    return Poison()


def retry_wait_ms(attempt: int, settings: ErrorSettings, draw: float) -> int:
    """Return the wait after failed attempt number `attempt` (1, 2, ...)."""
    return backoff_ms(
        attempt - 1,
        draw,
        first_ms=milliseconds(settings.retry_initial_wait),
        max_ms=milliseconds(settings.retry_max_wait),
    )


def _retry(failed: RetryRange, settings: ErrorSettings, draw: float) -> Retry:
    return Retry(replace(failed, attempt=failed.attempt + 1), retry_wait_ms(failed.attempt, settings, draw))
