"""Waiting for the first of several things, without a clock of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when one of the waits has ended, with its error if it raised. The others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
    finally:
        await cancelled(*tasks)


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs, and wait until it has ended. What it raised is for whoever asks it."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
