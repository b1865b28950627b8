"""The engine on a loop and a thread of its own, apart from all user code; and the signals that stop it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

Main = Callable[[asyncio.Event], Coroutine[Any, Any, BaseException | None]]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class EngineThread:
    """Runs one worker. `ended` tells how it ended: with nothing, with what made it stop, or with an error of ours."""

    def __init__(self, main: Main) -> None:
        self.ended: Future[BaseException | None] = Future()
        self._main = main
        self._stop_wanted = threading.Event()
        self._stop: Callable[[], object] | None = None
        # A daemon, so that a program that forgets to stop it can still end; its leases then expire.
        self._thread = threading.Thread(target=self._run, name="leasehold-engine", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Ask for a clean end; from any thread, from a signal handler, before the start, any number of times."""
        self._stop_wanted.set()
        if (stop := self._stop) is not None:
            stop()

    def _run(self) -> None:
        try:
            outcome = asyncio.run(self._run_main())
        except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
            self.ended.set_exception(error)
        else:
            self.ended.set_result(outcome)

    async def _run_main(self) -> BaseException | None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def stop_soon() -> None:
            with suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(stop.set)

        self._stop = stop_soon
        if self._stop_wanted.is_set():
            stop.set()
        try:
            return await self._main(stop)
        finally:
            self._stop = None


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """While this lasts, the first SIGTERM or SIGINT calls `stop`; the second ends the process at once.

    Only the main thread can have signal handlers; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        stop()

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
