"""`leasehold simulate`: runs the shipped code in the simulator."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from leasehold.cli.extras import needs_extra
from leasehold.cli.output import format_count, print_line, progress_lines
from leasehold.config.settings import Mode, Retrieval
from leasehold.errors import ConfigError

if TYPE_CHECKING:
    from leasehold.simulation.simulate import SimulationOptions, SimulationOutcome

_WORKERS_MAX: Final = 50
_DEFAULT_MINUTES: Final = 1.0


@click.command()
@click.option(
    "--seed", type=click.IntRange(0), default=0, help="Run this seed and show its trace.  [default: 0]"
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    help="Run this many seeds, starting with --seed, and show only failures.",
)
@click.option(
    "--workers", type=click.IntRange(1, _WORKERS_MAX), help="Worker processes.  [default: drawn, 1 to 5]"
)
@click.option("--shards", type=click.IntRange(1), help="Shards at the start.  [default: drawn, 1 to 8]")
@click.option(
    "--faults",
    default="drawn",
    show_default=True,
    help="Faults to inject: drawn, none, all, or a list such as crashes,pauses.",
)
@click.option(
    "--minutes",
    type=float,
    default=_DEFAULT_MINUTES,
    show_default=True,
    help="Simulated minutes in which faults are injected.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Operating-system processes for --seeds.",
)
@click.option(
    "--mode",
    type=click.Choice(["peer", "leader"]),
    default="peer",
    show_default=True,
    help="How the members assign the shards.",
)
@click.option(
    "--runtime",
    type=click.Choice(["drawn", "worker", "archive", "spark"]),
    default="drawn",
    show_default=True,
    help="What runs: workers with handlers, workers that archive, or a Spark query.",
)
@click.option(
    "--retrieval",
    type=click.Choice(["drawn", "polling", "fan_out"]),
    default="drawn",
    show_default=True,
    help="How shards are read.",
)
@click.option(
    "--start",
    type=click.Choice(["drawn", "oldest", "latest", "at-a-time"]),
    default="drawn",
    show_default=True,
    help="The initial position.",
)
@click.option(
    "--wide", is_flag=True, help="Also draw several streams, streams that come and go, and denied access."
)
@click.option(
    "--load/--no-load",
    default=None,
    help="With --mode leader: unequal loads after the faults.  [default: no, drawn with --wide]",
)
@click.option(
    "--streams",
    type=click.Choice(["drawn", "one", "several", "listed", "function"]),
    default="drawn",
    show_default=True,
    help="How the members know their streams. Without --wide, drawn means one.",
)
def simulate(*, seed: int, seeds: int | None, jobs: int, **world: Any) -> None:
    """Run the shipped code in the simulator.

    Time is virtual, faults are drawn from the seed, and every promise in docs/simulation.md is checked during the
    run. The same seed and version give exactly the same trace. The exit code is 1 if a promise was broken; the output
    then has the command that repeats the run.
    """
    options = _parse_options(seed, world)
    if seeds is None:
        _run_one(options)
    else:
        _run_many([replace(options, seed=options.seed + number) for number in range(seeds)], jobs)


def _parse_options(seed: int, given: Mapping[str, Any]) -> SimulationOptions:
    # Imported here and below, because the simulator's imports would slow down every other command.
    from leasehold.simulation.environment.streams import StreamChoice  # noqa: PLC0415
    from leasehold.simulation.faults import faults_from_names  # noqa: PLC0415
    from leasehold.simulation.runtime import Runtime  # noqa: PLC0415
    from leasehold.simulation.simulate import SimulationOptions  # noqa: PLC0415
    from leasehold.simulation.starts import Start  # noqa: PLC0415

    minutes, runtime, retrieval = given["minutes"], given["runtime"], given["retrieval"]
    if not math.isfinite(minutes) or minutes < 0.02:
        raise ConfigError(f"--minutes {minutes}: expected at least 0.02, one simulated second")
    if given["load"] and (given["mode"] != "leader" or runtime not in ("drawn", "worker")):
        raise ConfigError(
            "--load: only workers with a leader balance by load; add --mode leader --runtime worker"
        )
    if given["load"] and given["streams"] not in ("drawn", "one"):
        raise ConfigError("--load: unequal loads are simulated for one stream; leave out --streams")
    options = SimulationOptions(
        seed=seed,
        workers=given["workers"],
        shards=given["shards"],
        faults=faults_from_names(given["faults"]),
        faults_ms=round(minutes * 60_000),
        mode=Mode(given["mode"]),
        runtime=None if runtime == "drawn" else Runtime(runtime),
        retrieval=None if retrieval == "drawn" else Retrieval(retrieval),
        start=None if given["start"] == "drawn" else Start(given["start"].replace("-", " ")),
        is_wide=given["wide"],
        load=given["load"],
        streams=None if given["streams"] == "drawn" else StreamChoice(given["streams"]),
    )
    if options.load:
        options = replace(options, runtime=Runtime.WORKER, streams=StreamChoice.ONE)
    if options.runtime is not Runtime.WORKER:
        with needs_extra("archive"):
            pass
    return options


def _run_one(options: SimulationOptions) -> None:
    from leasehold.simulation.report import result_lines  # noqa: PLC0415
    from leasehold.simulation.simulate import simulate as run  # noqa: PLC0415

    # An exception in the middle of the run would leave coroutines behind, which report errors at the exit.
    with _on_signals(os._exit):
        outcome = run(options, show=print_line)
    for line in result_lines(outcome):
        print_line(line)
    if not outcome.has_passed:
        raise SystemExit(1)


def _run_many(runs: Sequence[SimulationOptions], jobs: int) -> None:
    from leasehold.simulation.report import result_lines, summary_lines  # noqa: PLC0415

    began_s = monotonic()
    outcomes: list[SimulationOutcome] = []
    console = Console(stderr=True)
    columns = TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with (
        _on_signals(sys.exit),
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        nullcontext() if console.is_terminal else _progress_lines(outcomes, len(runs)),
        _outcomes(runs, jobs) as running,
    ):
        task = progress.add_task("seeds", total=len(runs))
        for outcome in running:
            outcomes.append(outcome)
            progress.advance(task)
            if not outcome.has_passed:
                for line in result_lines(outcome):
                    print_line(line)
    for line in summary_lines(outcomes, monotonic() - began_s):
        print_line(line)
    if not all(outcome.has_passed for outcome in outcomes):
        raise SystemExit(1)


def _progress_lines(outcomes: Sequence[SimulationOutcome], total: int) -> AbstractContextManager[None]:
    def describe() -> str:
        failed = sum(not each.has_passed for each in outcomes)
        return f"{len(outcomes)} of {format_count(total, 'seed')} have run, {failed} failed"

    return progress_lines(describe)


@contextmanager
def _outcomes(runs: Sequence[SimulationOptions], jobs: int) -> Iterator[Iterator[SimulationOutcome]]:
    """Run all seeds in processes. If the block is left early, the processes end at once."""
    # Spawned, not forked: this process may have threads, which do not survive a fork.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))
    futures = []
    try:
        # Ctrl-C also reaches the processes, which inherit that it is blocked: only this process reacts to it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            futures = [pool.submit(_run_without_trace, options) for options in runs]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield (future.result() for future in as_completed(futures))
    except BaseException:
        print_line(
            f"stopped; {sum(each.done() for each in futures)} of {format_count(len(runs), 'seed')} have run"
        )
        for process in multiprocessing.active_children():
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _on_signals(react: Callable[[int], None]) -> Iterator[None]:
    """Call `react` with the exit code when SIGINT or SIGTERM arrives in this block."""
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(number, lambda number, _frame: react(128 + number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _run_without_trace(options: SimulationOptions) -> SimulationOutcome:
    from leasehold.simulation.simulate import simulate as run  # noqa: PLC0415

    return replace(run(options), trace=())
