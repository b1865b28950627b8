"""`leasehold simulate`: runs the shipped code in the simulator."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from leasehold.cli.extras import needs_extra
from leasehold.cli.option_values import refuse_values
from leasehold.cli.output import format_count, print_line, progress_lines
from leasehold.config.settings import Mode, Retrieval
from leasehold.errors import ConfigError, LeaseholdError

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
    "--wide",
    is_flag=True,
    help="Also draw concurrent handlers, several streams, streams that come and go, and denied access.",
)
@click.option(
    "--load/--no-load",
    default=None,
    help="With --mode leader: unequal loads after the faults.  [default: no, drawn with --wide]",
)
@click.option(
    "--concurrency/--no-concurrency",
    default=None,
    help="Handlers get single records, several at a time.  [default: no, drawn with --wide]",
)
@click.option(
    "--compaction",
    is_flag=True,
    help="Workers archive, and the archive is compacted and read meanwhile. Needs several --minutes.",
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
    with refuse_values():
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
    if given["concurrency"] and runtime not in ("drawn", "worker"):
        raise ConfigError("--concurrency: only workers with handlers have it; add --runtime worker")
    if given["compaction"] and (runtime not in ("drawn", "archive") or given["load"] or given["concurrency"]):
        raise ConfigError("--compaction: only workers that archive have it; add --runtime archive")
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
        concurrency=given["concurrency"],
        has_compaction=given["compaction"],
        streams=None if given["streams"] == "drawn" else StreamChoice(given["streams"]),
    )
    if options.load:
        options = replace(options, runtime=Runtime.WORKER, streams=StreamChoice.ONE)
    if options.concurrency:
        options = replace(options, runtime=Runtime.WORKER)
    if options.has_compaction:
        options = replace(options, runtime=Runtime.ARCHIVE)
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
    from leasehold.simulation.report import summary_lines  # noqa: PLC0415

    began_s = monotonic()
    outcomes: list[SimulationOutcome] = []
    try:
        with _on_signals(sys.exit):
            _collect(outcomes, runs, jobs)
    except SystemExit:
        print_line(f"stopped; {len(outcomes)} of {format_count(len(runs), 'seed')} have run")
        raise
    for line in summary_lines(outcomes, monotonic() - began_s):
        print_line(line)
    if not all(outcome.has_passed for outcome in outcomes):
        raise SystemExit(1)


def _collect(outcomes: list[SimulationOutcome], runs: Sequence[SimulationOptions], jobs: int) -> None:
    """Run all seeds, add their outcomes to the list, and print those that failed."""
    from leasehold.simulation.report import result_lines  # noqa: PLC0415

    console = Console(stderr=True)
    columns = TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with (
        # First, because the others start threads, which would take the signals that it blocks.
        _outcomes(runs, jobs) as running,
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        nullcontext() if console.is_terminal else _progress_lines(outcomes, len(runs)),
    ):
        task = progress.add_task("seeds", total=len(runs))
        for outcome in running:
            outcomes.append(outcome)
            progress.advance(task)
            if not outcome.has_passed:
                for line in result_lines(outcome):
                    print_line(line)


def _progress_lines(outcomes: Sequence[SimulationOutcome], total: int) -> AbstractContextManager[None]:
    def describe() -> str:
        failed = sum(not each.has_passed for each in outcomes)
        return f"{len(outcomes)} of {format_count(total, 'seed')} have run, {failed} failed"

    return progress_lines(describe)


@contextmanager
def _outcomes(runs: Sequence[SimulationOptions], jobs: int) -> Iterator[Iterator[SimulationOutcome]]:
    """Run all seeds in processes, which end at once when the block is left.

    A pool of processes may wait for ever if a signal comes while its processes start; these have only a pipe each.
    """
    # Spawned, not forked: this process may have threads, which do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pipes: dict[Connection, BaseProcess] = {}
    # Started first, because its start unblocks the signals that are blocked below.
    resource_tracker.ensure_running()
    # Ctrl-C also reaches the processes, which inherit that it is blocked: only this process reacts to it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        for number in range(min(jobs, len(runs))):
            pipe, end_of_process = context.Pipe(duplex=False)
            process = context.Process(target=_send_outcomes, args=(end_of_process, runs[number::jobs]))
            process.start()
            pipes[pipe] = process
            end_of_process.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield _receive_outcomes(pipes, len(runs))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for started in pipes.values():
            started.kill()
            started.join()


def _receive_outcomes(pipes: Mapping[Connection, BaseProcess], count: int) -> Iterator[SimulationOutcome]:
    """Yield the outcomes as they come. Raises LeaseholdError if a process ends before its last one."""
    open_pipes = list(pipes)
    while count:
        for ready in wait(open_pipes):
            assert isinstance(ready, Connection)
            try:
                yield ready.recv()
                count -= 1
            except EOFError:
                open_pipes.remove(ready)
                pipes[ready].join()
                if pipes[ready].exitcode:
                    raise LeaseholdError(
                        f"a process of the simulation has ended with exit code {pipes[ready].exitcode}"
                    ) from None


def _send_outcomes(pipe: Connection, runs: Sequence[SimulationOptions]) -> None:
    """Run seeds and send their outcomes, without the traces, which are long."""
    from leasehold.simulation.simulate import simulate as run  # noqa: PLC0415

    for options in runs:
        pipe.send(replace(run(options), trace=()))


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
