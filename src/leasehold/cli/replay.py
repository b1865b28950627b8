"""`leasehold replay`: delivers a period of a stream to a handler again, beside the running fleet."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from leasehold.adapters.logs import LogObserver
from leasehold.adapters.system_clock import SystemClock
from leasehold.cli.consumer_target import load_consumer
from leasehold.cli.option_values import check_target, refuse_values
from leasehold.cli.output import format_count, print_json, print_line
from leasehold.cli.run import LEVELS, configure_logging
from leasehold.cli.steering import say
from leasehold.core.model import InitialPosition, WorkerId
from leasehold.core.position import AT_TIMESTAMP, TRIM_HORIZON
from leasehold.core.steering.reset_target import ToLatest, ToOldest, ToTime, parse_reset_target
from leasehold.core.time_text import EXAMPLE, format_time
from leasehold.errors import ConfigError
from leasehold.loop_thread import LoopThread
from leasehold.steering.replay import ReplayProgress, ReplayRange, replay_settings, run_replay
from leasehold.worker.consumer import Consumer
from leasehold.worker.engine.engine_thread import stop_on_signals
from leasehold.worker.settings import ConsumerSettings
from leasehold.worker.user_code.handler_runners import ThreadedRunners

_TELL_EVERY_MS: Final = 10_000
_CLOSE_TIMEOUT_S: Final = 1.0
_INTERRUPTED: Final = 130
_FROM_FORMS: Final = f"expected trim-horizon, or a time with its zone such as {EXAMPLE}"
_TO_FORMS: Final = f"expected latest, or a time with its zone such as {EXAMPLE}"


@click.command()
@click.argument("target", required=False, metavar="[MODULE:CONSUMER]")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read settings and handler from this TOML file.",
)
@click.option("--from", "start", required=True, metavar="TIME", help="trim-horizon, or a time with its zone.")
@click.option(
    "--to",
    "end",
    default="latest",
    show_default=True,
    metavar="TIME",
    help="latest (until now), or a time with its zone. Later records are left out.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="warning",
    show_default=True,
    help="Lowest level to log, to stderr.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(
    *, target: str | None, config: Path | None, start: str, end: str, log_level: str, as_json: bool
) -> None:
    """Deliver a period of a stream to a handler again.

    MODULE:CONSUMER or --config name the consumer, as for `leasehold run`. The replay reads the period under a name of
    its own, with leases in its memory: the running fleet, its checkpoints and its tables are not touched. It ends when
    every record of the period was handled; with Ctrl-C it finishes its batches and exits with 130.
    """
    if (target is None) == (config is None):
        raise click.UsageError("Give either MODULE:CONSUMER or --config FILE.")
    with refuse_values():
        period = parse_period(start, end, SystemClock().wall_ms())
        if target is not None:
            check_target(target)
    configure_logging(log_level.upper(), log_aws=False)
    consumer = load_consumer(target, config)
    name = f"{consumer.settings.identity.application}-replay-{secrets.token_hex(4)}"
    with refuse_values():
        settings = replay_settings(consumer.settings, name, period)
    handler_loop = LoopThread("leasehold-handlers")
    try:
        progress, is_interrupted = _run(consumer, settings, period, ThreadedRunners(handler_loop.loop))
    finally:
        handler_loop.close(timeout_s=_CLOSE_TIMEOUT_S)
    _show(progress, period, is_complete=not is_interrupted, as_json=as_json)
    if is_interrupted:
        raise SystemExit(_INTERRUPTED)


def parse_period(start: str, end: str, now_ms: int) -> ReplayRange:
    """Parse the period. Raises ConfigError if it is empty, or ends in the future."""
    first = parse_reset_target(start, option="--from", forms=_FROM_FORMS)
    last = parse_reset_target(end, forms=_TO_FORMS)
    if not isinstance(first, ToOldest | ToTime):
        raise ConfigError(f"--from {start}: {_FROM_FORMS}")
    if not isinstance(last, ToLatest | ToTime):
        raise ConfigError(f"--to {end}: {_TO_FORMS}")
    end_ms = last.at_ms if isinstance(last, ToTime) else now_ms
    if end_ms > now_ms:
        raise ConfigError(f"--to {end} is in the future: a replay ends at latest now; leave --to out")
    if isinstance(first, ToOldest):
        return ReplayRange(InitialPosition(TRIM_HORIZON), end_ms)
    if first.at_ms >= end_ms:
        raise ConfigError(f"--from {start} is not before --to {format_time(end_ms)}: the period is empty")
    return ReplayRange(InitialPosition(AT_TIMESTAMP, first.at_ms), end_ms)


def _run(
    consumer: Consumer, settings: ConsumerSettings, period: ReplayRange, runners: ThreadedRunners
) -> tuple[ReplayProgress, bool]:
    """Run the replay, and return whether a signal ended it."""
    is_interrupted = False

    async def main() -> ReplayProgress:
        nonlocal is_interrupted
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def interrupt() -> None:
            nonlocal is_interrupted
            is_interrupted = True
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(stop.set)

        with stop_on_signals(interrupt):
            return await _connect_and_run(consumer, settings, period, runners, stop)

    return asyncio.run(main()), is_interrupted


async def _connect_and_run(
    consumer: Consumer,
    settings: ConsumerSettings,
    period: ReplayRange,
    runners: ThreadedRunners,
    stop: asyncio.Event,
) -> ReplayProgress:
    from leasehold.adapters.memory.rows import MemoryRows  # noqa: PLC0415
    from leasehold.fleet.table.lease_table import LeaseTable  # noqa: PLC0415
    from leasehold.wiring import new_rng, open_stream  # noqa: PLC0415 - boto3 is slow
    from leasehold.worker.connect import open_dead_letters  # noqa: PLC0415
    from leasehold.worker.engine.run_worker import WorkerPorts  # noqa: PLC0415

    clock = SystemClock()
    stream = open_stream(settings.connection, settings.identity.stream)
    try:
        oldest_ms = clock.wall_ms() - await stream.get_retention_ms()
        with refuse_values():
            require_retained(period, oldest_ms)
        ports = WorkerPorts(
            worker=WorkerId(settings.identity.worker_id),
            table=LeaseTable(MemoryRows()),
            streams={settings.identity.stream: stream},
            dead_letters=open_dead_letters(settings.handling.errors.dead_letters, settings.connection),
            clock=clock,
            rng=new_rng(),
            observe=LogObserver(clock.now_ms),
        )
        return await run_replay(consumer, settings, period, ports, runners, stop=stop, tell=_Teller())
    finally:
        await stream.close()


def require_retained(period: ReplayRange, oldest_ms: int) -> None:
    """Raise ConfigError if the period begins or ends before what the stream retains."""
    if period.end_ms <= oldest_ms:
        raise ConfigError(
            f"--to {format_time(period.end_ms)}: the stream retains records since {format_time(oldest_ms)}, and older "
            "ones are lost; choose a later time, or leave --to out"
        )
    if period.start.timestamp_ms is not None and period.start.timestamp_ms < oldest_ms:
        raise ConfigError(
            f"--from {format_time(period.start.timestamp_ms)}: the stream retains records since "
            f"{format_time(oldest_ms)}; write trim-horizon to begin at the oldest record"
        )


class _Teller:
    """Shows the progress on stderr every ten seconds."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._told_ms = self._clock.now_ms()

    def __call__(self, progress: ReplayProgress) -> None:
        now_ms = self._clock.now_ms()
        if now_ms - self._told_ms < _TELL_EVERY_MS:
            return
        self._told_ms = now_ms
        shards = f"{progress.shards_done} of {progress.shards} shards done"
        say(f"{format_count(progress.records, 'record')} handled, {shards}")


def _show(progress: ReplayProgress, period: ReplayRange, *, is_complete: bool, as_json: bool) -> None:
    fields: Mapping[str, Any] = {
        "records": progress.records,
        "shards": progress.shards,
        "is_complete": is_complete,
        "end": format_time(period.end_ms),
    }
    if as_json:
        print_json(fields)
        return
    done = "replayed" if is_complete else "handled before the replay was stopped"
    print_line(
        f"{format_count(progress.records, 'record')} of {format_count(progress.shards, 'shard')} {done}, "
        f"to {format_time(period.end_ms)}"
    )
