"""`leasehold run --processes`: runs the same command several times, below a supervisor."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from leasehold.adapters.system_clock import SystemClock
from leasehold.errors import ProcessesFailedError
from leasehold.worker.engine.engine_thread import SAME_REQUEST_S, STDERR, STOPPING
from leasehold.worker.processes.supervisor import Supervisor


def run_processes(count: int, options: Mapping[str, Any]) -> None:
    """Run worker processes until SIGTERM or SIGINT. Raises if one of them failed and a restart would not help."""
    failures = asyncio.run(_supervise(count, options))
    if failures:
        raise ProcessesFailedError("\n".join(failures))


async def _supervise(count: int, options: Mapping[str, Any]) -> list[str]:
    loop = asyncio.get_running_loop()
    supervisor = Supervisor(
        lambda number, descriptor: member_command(options, number, descriptor),
        count,
        clock=SystemClock(),
        rng=random.Random(secrets.randbits(128)),  # noqa: S311 - for jitter
    )
    with _stop_on_signals(loop, supervisor):
        return await supervisor.run()


@contextmanager
def _stop_on_signals(loop: asyncio.AbstractEventLoop, supervisor: Supervisor) -> Iterator[None]:
    """Stop all processes on the first SIGTERM or SIGINT, and end them at once on the second.

    The event loop handles the signals. A handler of `signal.signal` could wait for ever: it runs when the main thread
    runs Python code, and the loop may have begun its wait just before the signal came.
    """
    requested_s: list[float] = []

    def on_signal(number: signal.Signals) -> None:
        if not requested_s:
            requested_s.append(monotonic())
            if os.isatty(STDERR):
                os.write(STDERR, STOPPING)
            supervisor.stop()
        elif monotonic() - requested_s[0] > SAME_REQUEST_S:
            supervisor.kill()
            loop.remove_signal_handler(number)
            signal.raise_signal(number)

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def member_command(options: Mapping[str, Any], number: int, descriptor: int) -> Sequence[str]:
    """The command of one worker process: the same `leasehold run`, with its number and its link.

    `-P` keeps the current folder out of the way of the standard library. `leasehold run` adds it later.

    >>> member_command({"target": "billing:consumer", "config": None, "log_aws": True}, 1, 5)[4:]
    ['run', '--member', '1:5', '--log-aws', '--', 'billing:consumer']
    """
    command = [sys.executable, "-P", "-m", "leasehold", "run", "--member", f"{number}:{descriptor}"]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            command.append(option)
        elif name != "target" and value not in {None, False}:
            command += [option, str(value)]
    target = options.get("target")
    return command if target is None else [*command, "--", target]
