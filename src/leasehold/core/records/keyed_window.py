"""Decides which records of a shard may be handled now, if records of different partition keys are handled concurrently.

Records are added in shard order, and numbered. At most `concurrency` of them run at one time. Of one partition key only
the first unfinished record may run, so the records of a key are handled in order, also if one of them is retried.
Everything before the first unfinished record is done: only that far may a checkpoint move.

This module has no effects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush


class KeyedWindow:
    """The records of one shard that were added and are not yet behind the first unfinished one.

    >>> window = KeyedWindow(concurrency=2)
    >>> window.add(["a", "a", "b", "c"])
    >>> window.start_ready()
    [0, 2]
    >>> window.finish(2)
    >>> window.start_ready(), window.first_unfinished
    ([3], 0)
    >>> window.finish(0)
    >>> window.start_ready(), window.first_unfinished
    ([1], 1)
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._added = 0
        self._first_unfinished = 0
        self._running: set[int] = set()
        self._finished: set[int] = set()  # beyond the first unfinished record
        self._by_key: dict[str, deque[int]] = {}  # the unfinished records of each key, in order
        self._key_of: dict[int, str] = {}  # of the unfinished records
        self._ready: list[int] = []  # a heap: the first in shard order starts first
        self._last_started = -1
        self._is_draining = False
        self.has_given_up = False  # a record cannot be handled before the lease is released

    @property
    def first_unfinished(self) -> int:
        """The number of the first record that is not finished. All records before it are."""
        return self._first_unfinished

    @property
    def is_all_finished(self) -> bool:
        """True if no added record is unfinished."""
        return self._first_unfinished == self._added

    @property
    def is_drained(self) -> bool:
        """True if nothing is left to do before the lease is released: see `drain` and `give_up`."""
        if self.has_given_up:
            return not self._running
        return self._is_draining and self._first_unfinished > self._last_started

    def add(self, keys: Iterable[str]) -> None:
        """Add records in shard order, given by their partition keys."""
        for key in keys:
            number, self._added = self._added, self._added + 1
            self._key_of[number] = key
            waiting = self._by_key.setdefault(key, deque())
            waiting.append(number)
            if len(waiting) == 1:
                heappush(self._ready, number)

    def start_ready(self) -> list[int]:
        """Return the records that may run now, and count them as running."""
        started: list[int] = []
        while self._ready and len(self._running) < self._concurrency and self._may_start(self._ready[0]):
            number = heappop(self._ready)
            self._running.add(number)
            self._last_started = max(self._last_started, number)
            started.append(number)
        return started

    def suspend(self, number: int) -> None:
        """Stop a running record for a while. The next record of its key still waits for it; another key may run."""
        self._running.remove(number)

    def run_again(self, number: int) -> None:
        """Count a suspended record as running. Nothing is drained before it is suspended again or finished."""
        self._running.add(number)

    def resume(self, number: int) -> None:
        """Let a suspended record run again, when there is room."""
        heappush(self._ready, number)

    def finish(self, number: int) -> None:
        """Mark a record as done. It may be running or suspended."""
        self._running.discard(number)
        key = self._key_of.pop(number)
        waiting = self._by_key[key]
        first_of_key = waiting.popleft()
        assert first_of_key == number, (
            f"record {number} is finished before {first_of_key}, which has the same key"
        )
        if waiting:
            heappush(self._ready, waiting[0])
        else:
            del self._by_key[key]
        self._finished.add(number)
        while self._first_unfinished in self._finished:
            self._finished.remove(self._first_unfinished)
            self._first_unfinished += 1

    def drain(self) -> None:
        """Start no record after the last one that was started.

        Those before it are still handled: otherwise records that are done would be repeated by the next owner.
        """
        self._is_draining = True

    def give_up(self) -> None:
        """Start nothing more, because a record cannot be handled before the lease is released."""
        self.has_given_up = True

    def _may_start(self, number: int) -> bool:
        return not self.has_given_up and (not self._is_draining or number <= self._last_started)
