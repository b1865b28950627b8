"""Reacts to SIGTERM and SIGINT during a command that takes a while to stop."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Final

from leasehold.spark.pipeline.processes import descendants, kill_with_descendants
from leasehold.spark.pipeline.start_up import cache_folder, drop_recordings
from leasehold.worker.engine.engine_thread import SAME_REQUEST_S

STOPPING: Final = "stopping; a second Ctrl-C or SIGTERM ends it at once"
_SHOW_CURSOR: Final = b"\x1b[?25h"


class StopRequest:
    """A request to stop, by signal.

    The first signal is acknowledged at once. While the command starts, it also raises KeyboardInterrupt, because there
    is nothing to wait for. The second one ends this process and all that it has started.
    """

    def __init__(self) -> None:
        self.was_requested = False
        self._requested_s = 0.0
        self._may_interrupt = True
        self._skip: Callable[[], None] | None = None
        # A signal handler may interrupt any code, so it must not print. This queue may be used in it.
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self.install_handlers()

    def install_handlers(self) -> None:
        """Install the signal handlers."""
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._on_signal)

    @contextmanager
    def announced_by(self, show: Callable[[str], None]) -> Iterator[None]:
        """Acknowledge a request in this block by a call of `show`, from another thread."""

        def acknowledge() -> None:
            while self._requests.get():
                show(STOPPING)

        thread = threading.Thread(target=acknowledge, name="leasehold-stop", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._requests.put(False)
            thread.join()

    def end_start(self) -> None:
        """From now on, a request does not interrupt. Raises KeyboardInterrupt if there was one."""
        self._may_interrupt = False
        self.install_handlers()  # again, because Spark has installed its own
        if self.was_requested:
            raise KeyboardInterrupt

    def let_signals(self, skip: Callable[[], None]) -> None:
        """Let every further signal only call `skip`, because all other work is done."""
        self._skip = skip

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._skip is not None:
            self._skip()
            return
        if self.was_requested:
            if time.monotonic() - self._requested_s > SAME_REQUEST_S:
                _end_at_once(128 + number)
            return
        self.was_requested = True
        self._requested_s = time.monotonic()
        self._requests.put(True)
        if self._may_interrupt:
            raise KeyboardInterrupt


def _end_at_once(code: int) -> None:
    """End this process and all that it has started, and leave no unfinished file."""
    for child in descendants(os.getpid()):
        kill_with_descendants(child.pid)
    drop_recordings(cache_folder(os.environ), is_abandoned=lambda pid: pid == os.getpid())
    if sys.__stdout__ is not None and sys.__stdout__.isatty():
        os.write(1, _SHOW_CURSOR)  # a live table has hidden it
    os._exit(code)
