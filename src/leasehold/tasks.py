"""Helpers for asyncio tasks, used by the whole package: concurrent calls, cancellation and retries.

Invariant: no task outlives the call that created it, however this call ends. `asyncio.gather` does not promise that:
when one of its tasks fails, the others go on without a caller.

They use the clock and the random source that are passed in, so that the simulator controls time and chance.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from leasehold.core.backoff import backoff_ms
from leasehold.errors import ThrottledError, UnavailableError
from leasehold.ports import Clock

T = TypeVar("T")

TRANSIENT_ERRORS: Final[tuple[type[Exception], ...]] = (ThrottledError, UnavailableError)


async def all_of(*calls: Coroutine[Any, Any, T]) -> list[T]:
    """Run coroutines concurrently and return their results, in the order of the arguments.

    If one of them fails, or if the caller is cancelled, the others are cancelled. Returns or raises only after all have
    ended.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:  # in the order of the arguments, so that a simulated run can be repeated
            if task.done():
                task.result()
        return [task.result() for task in tasks]
    finally:
        await cancel_and_wait(*tasks)


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until the first of several coroutines ends, and cancel the others. If the first failed, raise its error."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:  # in the order of the arguments, so that a simulated run can be repeated
            if task in done:
                task.result()
    finally:
        await cancel_and_wait(*tasks)


async def wait_for(*tasks: asyncio.Future[Any]) -> None:
    """Wait until all tasks have ended. Their errors are not raised here, and they are not cancelled with the caller."""
    await asyncio.wait(tasks)


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel all tasks and wait until they have ended. Their errors are not raised; they stay in the tasks."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def retry(
    call: Callable[[], Awaitable[T]],
    *,
    clock: Clock,
    rng: random.Random,
    errors: tuple[type[Exception], ...] = TRANSIENT_ERRORS,
    attempts_max: int | None = None,
    until_ms: int | None = None,
    pause_ms: int | None = None,
) -> T:
    """Call until it succeeds, and return the result. Only `errors` are retried.

    Raises the last error after `attempts_max` calls, or after the pause in which the clock has reached `until_ms`. The
    pauses grow with the number of failures (`backoff_ms`), unless `pause_ms` fixes them.
    """
    attempt = 0
    while True:
        try:
            return await call()
        except errors:
            if attempts_max is not None and attempt + 1 >= attempts_max:
                raise
            await clock.sleep_ms(backoff_ms(attempt, rng.random()) if pause_ms is None else pause_ms)
            if until_ms is not None and clock.now_ms() >= until_ms:
                raise
        attempt += 1
