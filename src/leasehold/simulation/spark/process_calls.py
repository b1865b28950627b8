"""Calls from one simulated process to another on the same machine or cluster: Spark's driver calls its readers and
executors.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from leasehold.simulation.environment.process import SimulatedProcess

T = TypeVar("T")


class ProcessDiedError(Exception):
    """The called process ended before it returned a result."""


def call_in(
    process: SimulatedProcess, work: Callable[[], Coroutine[Any, Any, T]], context: contextvars.Context
) -> asyncio.Future[T]:
    """Run a coroutine in another process. The result is an error if that process ends first.

    The work continues if the caller dies. `context` belongs to no process.
    """
    result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def fail() -> None:
        if not result.done():
            result.set_exception(ProcessDiedError(f"{process.name} has ended"))
            result.exception()  # a caller that has died as well does not retrieve it

    def pass_on(task: asyncio.Task[T]) -> None:
        if fail in process.on_exit:
            process.on_exit.remove(fail)
        error = None if task.cancelled() else task.exception()
        if result.done():
            return
        if task.cancelled():
            fail()
        elif error is not None:
            result.set_exception(error)
            result.exception()
        else:
            result.set_result(task.result())

    if process.is_alive:
        process.on_exit.append(fail)
        process.spawn(work).add_done_callback(pass_on, context=context)
    else:
        fail()
    return result
