"""What the commands that steer a fleet share: their options, their name as a member, progress, and confirmation."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any, Final, TypeVar

import click

from leasehold.adapters.system_clock import SystemClock
from leasehold.cli.option_values import Seconds
from leasehold.cli.output import escape_unprintable, format_count
from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.command_name import command_member
from leasehold.core.finding import format_duration
from leasehold.core.shown_text import shorten_ids
from leasehold.core.steering.capture import CaptureLimits
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.steering.lease_capture import CapturePorts, LeaseCapture, Waiting

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")

TIMEOUT_S: Final = 180.0
_SAY_EVERY_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Steering:
    """How a command steers: what it may do to owners, and how long it waits for all of them."""

    limits: CaptureLimits
    timeout_ms: int

    def capture(self, table: LeaseTable, purpose: str) -> LeaseCapture:
        """Return a member with a new name that captures leases, and reports on stderr for whom it waits."""
        from leasehold.wiring import new_rng, new_worker_id  # noqa: PLC0415 - boto3 is slow

        ports = CapturePorts(table=table, clock=SystemClock(), rng=new_rng(), report=ProgressLines())
        return LeaseCapture(ports, command_member(purpose, new_worker_id()), self.limits)


def steering_options(command: Command) -> Command:
    """Add the options of a command that captures leases, and pass their values as `steering`."""
    defaults = FleetSettings()

    @wraps(command)
    def with_steering(*, timeout: float, failover_after: float | None, no_handoff: bool, **given: Any) -> Any:
        from leasehold.worker.options import read_surroundings  # noqa: PLC0415 - not needed for --help

        found = read_surroundings(os.environ)
        failover = found.get("failover_after", defaults.failover_after)
        if failover_after is not None:
            failover = timedelta(seconds=failover_after)
        handoff = found.get("handoff_timeout", defaults.handoff_timeout)
        assert isinstance(failover, timedelta)
        assert isinstance(handoff, timedelta)
        limits = CaptureLimits(
            failover_ms=milliseconds(failover),
            handoff_timeout_ms=milliseconds(handoff),
            may_hand_off=not no_handoff and found.get("handoff", True) is True,
        )
        return command(steering=Steering(limits, round(timeout * 1000)), **given)

    options = [
        click.option(
            "--timeout",
            type=Seconds(min=0, min_open=True),
            default=TIMEOUT_S,
            show_default=True,
            metavar="SECONDS",
            help="Give up leases whose owners have not handed them over by then.",
        ),
        click.option(
            "--failover-after",
            type=Seconds(min=1),
            metavar="SECONDS",
            help="Failover time of the fleet.  [default: LEASEHOLD_FAILOVER_AFTER, or 10]",
        ),
        click.option(
            "--no-handoff",
            is_flag=True,
            help="Take leases without asking their owners, for a fleet of KCL 1.x. Batches in flight are repeated.",
        ),
    ]
    decorated: Any = with_steering
    for option in reversed(options):
        decorated = option(decorated)
    result: Command = decorated
    return result


class ProgressLines:
    """Says on stderr for which owners a command waits: when that changes, and every ten seconds."""

    def __init__(self) -> None:
        self._said: Counter[str] = Counter()
        self._said_ms = 0

    def __call__(self, waiting: Sequence[Waiting]) -> None:
        """Show the owners that have not handed over."""
        owners = Counter(str(each.owner) for each in waiting)
        now_ms = SystemClock().now_ms()
        if not owners or (owners == self._said and now_ms - self._said_ms < _SAY_EVERY_MS):
            return
        self._said, self._said_ms = owners, now_ms
        longest: dict[str, int] = {}
        for each in waiting:
            longest[each.owner] = max(longest.get(each.owner, 0), each.for_ms)
        for owner, number in sorted(owners.items()):
            say(f"waiting for {owner} to hand over {format_count(number, 'shard')}{_for(longest[owner])}")


async def give_back_on_signals(work: Coroutine[Any, Any, T]) -> T:
    """Run a command that captures leases. The first SIGINT or SIGTERM cancels it, and it gives its leases back.

    A second signal ends the process at once. The exit code is that of a process which the signal has ended.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        for each in before:
            loop.remove_signal_handler(each)  # the next signal has its usual effect
        say("stopping: the leases are given back to the fleet; a second signal ends the command at once")
        task.cancel()

    for number in before:
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        say("interrupted: each lease is at its old or its new position; `leasehold leases` shows them")
        raise click.exceptions.Exit(128 + received[0]) from None
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def describe_kept(waiting: Sequence[Waiting]) -> str:
    """The sentence for leases whose owners did not hand them over in time."""
    owners = sorted({str(each.owner) for each in waiting})
    names = ", ".join(owners) or "another member"
    return (
        f"{format_count(len(waiting), 'lease')} unchanged: {names} did not hand over in time. A batch in flight takes "
        "long, or the owner no longer runs; `leasehold explain` says which. Run the command again, or raise --timeout"
    )


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal. Without a terminal, --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            "There is no terminal to ask for confirmation: add --yes, or --dry-run to see the plan."
        )
    # The handler of asyncio would only cancel the task, which waits here for an answer.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        click.confirm(question, abort=True, err=True)
    finally:
        signal.signal(signal.SIGINT, before)


def say(text: str) -> None:
    """Print a line of progress to stderr."""
    click.echo(escape_unprintable(shorten_ids(text)), err=True)


def _for(duration_ms: int) -> str:
    return f", asked {format_duration(duration_ms)} ago" if duration_ms >= 1_000 else ""
