"""How a member goes about its work: a step that the world makes fail is told and tried again; a bug is not survived."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from leasehold.core.backoff import backoff_ms
from leasehold.core.events import Observer, OperationFailed
from leasehold.errors import ConfigError, LeaseholdError
from leasehold.ports import Clock

Step = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Operations:
    """Takes steps, and tells of those that fail."""

    clock: Clock
    rng: random.Random
    observe: Observer

    async def take(self, name: str, step: Step) -> bool:
        """Do one step; a failure of the world is told and survived."""
        try:
            await step()
        except LeaseholdError as error:
            self.observe(OperationFailed(name, str(error)))
            return False
        return True

    async def retry_until_success(self, name: str, step: Step, stop: asyncio.Event) -> None:
        """Try a step until it works or we are told to stop. What the configuration got wrong is not tried again."""
        attempt = 0
        while not stop.is_set():
            try:
                await step()
            except ConfigError:
                raise
            except LeaseholdError as error:
                self.observe(OperationFailed(name, str(error)))
                pause_ms = backoff_ms(attempt, self.rng.random())
                await first_of(stop.wait(), self.clock.sleep_ms(pause_ms))
                attempt += 1
            else:
                return


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of several things has happened; stop waiting for the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancelled(*tasks)


async def ended(*tasks: asyncio.Future[Any]) -> None:
    """Wait for the end of tasks without taking part in them: neither their errors nor our cancellation pass."""
    await asyncio.wait(tasks)


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks that still run, and wait until they have ended. What they raised is for whoever asks them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
