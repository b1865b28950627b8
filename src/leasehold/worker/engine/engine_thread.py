"""Runs the engine on an event loop and a thread of its own, apart from all user code, and stops it on signals."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from time import monotonic
from types import FrameType
from typing import Any, Final

Main = Callable[[asyncio.Event], Coroutine[Any, Any, BaseException | None]]

# `timeout` sends its signal to its command and to the group of the command, so one request arrives as two signals.
SAME_REQUEST_S: Final = 1.0
STDERR: Final = 2
STOPPING: Final = b"stopping; a second Ctrl-C or SIGTERM ends the program at once\n"
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class EngineThread:
    """Runs one worker.

    `finished` completes when the worker has ended: with None, with the error that made the worker stop by itself, or,
    as the future's exception, with an error of the engine.
    """

    def __init__(self, main: Main) -> None:
        self.finished: Future[BaseException | None] = Future()
        self._main = main
        self._stop_requested = threading.Event()
        self._stop: Callable[[], object] | None = None
        # A daemon thread, so that a program that forgets to stop it can still exit. Its leases then expire.
        self._thread = threading.Thread(target=self._run, name="leasehold-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Request a clean stop. May be called from any thread or signal handler, before `start`, and repeatedly."""
        self._stop_requested.set()
        if (stop := self._stop) is not None:
            stop()

    def _run(self) -> None:
        try:
            reason = asyncio.run(self._run_main())
        except BaseException as error:  # noqa: BLE001 - reported through the future
            self.finished.set_exception(error)
        else:
            self.finished.set_result(reason)

    async def _run_main(self) -> BaseException | None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def stop_soon() -> None:
            with suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(stop.set)

        # First `_stop`, then the check: a stop that is requested in between is seen by one of them.
        self._stop = stop_soon
        if self._stop_requested.is_set():
            stop.set()
        try:
            return await self._main(stop)
        finally:
            self._stop = None


@contextmanager
def stop_on_signals(stop: Callable[[], None], *, is_announced: bool = True) -> Iterator[None]:
    """Call `stop` on the first SIGTERM or SIGINT. The second signal ends the process at once.

    Only the main thread can have signal handlers; on other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    requested_s: list[float] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if not requested_s:
            requested_s.append(monotonic())
            if is_announced and os.isatty(STDERR):  # at once, because handlers may take a while to finish
                os.write(STDERR, STOPPING)
            stop()
        elif monotonic() - requested_s[0] > SAME_REQUEST_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
