"""What to do after a handler has raised: try again, cut the batch in two, or call the record poison.

A batch that fails is tried again, whole, with growing waits. When that does not help it is cut in two, and the halves
are tried in order, each of them once: a half that succeeds is done and never given again, a half that fails is cut
further. A single record is tried as often as a whole batch before it is called poison, so that a short outage of a
database in the middle of the search does not condemn a sound one.

Decides only. Knows neither records nor handlers; a piece of a batch is a pair of indexes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from leasehold.config.settings import milliseconds
from leasehold.core.backoff import backoff_ms
from leasehold.worker.settings import ErrorSettings, OnPoison


@dataclass(frozen=True, slots=True)
class RetryRange:
    """Records `first` to `stop` (exclusive) of a batch, about to be tried for the `attempt`-th time."""

    first: int
    stop: int
    attempt: int = 1
    is_whole: bool = True

    def __len__(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True, slots=True)
class Retry:
    """Give the same records again after a wait."""

    piece: RetryRange
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Split:
    """Give the two halves, in this order."""

    first: RetryRange
    second: RetryRange


@dataclass(frozen=True, slots=True)
class Poison:
    """These records cannot be handled; `on_poison` says what becomes of them."""


def decide_after_failure(piece: RetryRange, settings: ErrorSettings, draw: float) -> Retry | Split | Poison:
    """What follows the failed attempt at a piece. `draw` in [0, 1) spreads the waits.

    >>> decide_after_failure(RetryRange(0, 5, attempt=6), ErrorSettings(retries=5), 0.5).first
    RetryRange(first=0, stop=2, attempt=1, is_whole=False)
    """
    many = len(piece) > 1
    attempts_max = 1 if many and not piece.is_whole else 1 + settings.retries
    if piece.attempt < attempts_max:
        return _again(piece, settings, draw)
    if many and settings.bisect:
        middle = piece.first + len(piece) // 2
        return Split(
            RetryRange(piece.first, middle, is_whole=False), RetryRange(middle, piece.stop, is_whole=False)
        )
    if settings.poison is OnPoison.HOLD:
        return _again(piece, settings, draw)
    return Poison()


def retry_wait_ms(attempt: int, settings: ErrorSettings, draw: float) -> int:
    """How long to wait after failed attempt number `attempt` (1, 2, ...)."""
    return backoff_ms(
        attempt - 1,
        draw,
        first_ms=milliseconds(settings.retry_initial_wait),
        max_ms=milliseconds(settings.retry_max_wait),
    )


def _again(piece: RetryRange, settings: ErrorSettings, draw: float) -> Retry:
    return Retry(replace(piece, attempt=piece.attempt + 1), retry_wait_ms(piece.attempt, settings, draw))
