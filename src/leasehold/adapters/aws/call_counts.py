"""Counts the calls of a worker to Kinesis, by operation, and reports them every ten seconds.

They are counted where they are sent, so every page of a list counts, and a request in CBOR that is repeated in JSON.
One event for each call would cost more than the call of an idle shard.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from leasehold.core.events import CallCount, KinesisCallsCounted, Observer
from leasehold.errors import ThrottledError
from leasehold.ports import Clock
from leasehold.tasks import cancel_and_wait

REPORT_EVERY_MS: Final = 10_000


@dataclass(slots=True)
class _Counts:
    calls: int = 0
    throttled: int = 0
    failed: int = 0


@dataclass(slots=True)
class KinesisCalls:
    """The calls that were answered, or failed, since the last `take`. Used on one event loop."""

    _counts: dict[str, _Counts] = field(default_factory=dict)

    def add(self, call: str, error: Exception | None = None) -> None:
        """A call has ended. `call` is its name in boto3, such as `get_records`; `error` is the error as translated."""
        counts = self._counts.setdefault(call, _Counts())
        counts.calls += 1
        counts.throttled += isinstance(error, ThrottledError)
        counts.failed += error is not None and not isinstance(error, ThrottledError)

    def take(self) -> tuple[CallCount, ...]:
        """The counts by operation, which begin at zero again."""
        taken, self._counts = self._counts, {}
        return tuple(
            CallCount(_operation(call), each.calls, each.throttled, each.failed)
            for call, each in sorted(taken.items())
        )


def _operation(call: str) -> str:
    """The name of an operation in the API.

    >>> _operation("get_shard_iterator")
    'GetShardIterator'
    """
    return "".join(word.title() for word in call.split("_"))


@asynccontextmanager
async def report_calls(calls: KinesisCalls, observe: Observer, clock: Clock) -> AsyncIterator[None]:
    """Report the calls while the block runs, and once more at its end."""
    reporting = asyncio.ensure_future(_report(calls, observe, clock))
    try:
        yield
    finally:
        await cancel_and_wait(reporting)


async def _report(calls: KinesisCalls, observe: Observer, clock: Clock) -> None:
    began_ms = clock.now_ms()
    try:
        while True:
            await clock.sleep_ms(REPORT_EVERY_MS)
            began_ms = _report_once(calls, observe, began_ms, clock.now_ms())
    finally:
        _report_once(calls, observe, began_ms, clock.now_ms())


def _report_once(calls: KinesisCalls, observe: Observer, began_ms: int, now_ms: int) -> int:
    if taken := calls.take():
        observe(KinesisCallsCounted(taken, max(1, now_ms - began_ms)))
    return now_ms
