"""Runs the blocking calls of boto3 on threads, so that they do not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

THREADS_DEFAULT: Final = 16


class BlockingCalls:
    """Runs a client's calls on its own threads, so that slow user handlers cannot delay a heartbeat."""

    def __init__(self, name: str, threads: int = THREADS_DEFAULT) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"leasehold-{name}")

    async def run(self, call: Callable[..., Any], /, **arguments: Any) -> Any:
        """Await a blocking call. Cancelling the wait does not cancel the call: its write may still be applied."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(call, **arguments))

    def close(self) -> None:
        """Stop accepting calls. The threads end after their current call."""
        self._pool.shutdown(wait=False, cancel_futures=True)
