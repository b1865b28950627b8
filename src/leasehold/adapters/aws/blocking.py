"""boto3 blocks; the fleet must not. This is the one place that knows both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

THREADS_DEFAULT: Final = 16


class BlockingCalls:
    """Runs a client's calls on threads of its own, so that slow handlers of the user cannot starve a heartbeat."""

    def __init__(self, name: str, threads: int = THREADS_DEFAULT) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"leasehold-{name}")

    async def run(self, call: Callable[..., Any], /, **arguments: Any) -> Any:
        """Await a blocking call. Cancelling the wait does not cancel the call: what it writes may still happen."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(call, **arguments))

    def close(self) -> None:
        """End the threads, once their calls have ended."""
        self._pool.shutdown(wait=False, cancel_futures=True)
