"""`leasehold simulate`: the shipped engine in a seeded world."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from time import monotonic
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from leasehold.cli.output import print_line
from leasehold.config.settings import Mode
from leasehold.errors import ConfigError

# Beyond this a fleet is simulated without records: members and leases only.
WORKERS_WITH_RECORDS_MAX: Final = 50
_DEFAULT_MINUTES: Final = 1.0
_WORKERS_UNDER_LOAD: Final = 10


@click.command()
@click.option("--seed", type=click.IntRange(0), help="Run this seed and show its trace.  [default: 0]")
@click.option(
    "--seeds", type=click.IntRange(1), help="Run so many seeds, from --seed on, and show only the failures."
)
@click.option("--workers", type=click.IntRange(1), help="Worker processes.  [default: drawn, 1 to 5]")
@click.option("--shards", type=click.IntRange(1), help="Shards to begin with.  [default: drawn, 1 to 8]")
@click.option(
    "--faults",
    default="drawn",
    show_default=True,
    help="What may go wrong: drawn, none, all, or a list such as crashes,pauses.",
)
@click.option(
    "--minutes", type=float, default=_DEFAULT_MINUTES, show_default=True, help="Of trouble, simulated."
)
@click.option(
    "--jobs", type=click.IntRange(1), default=2, show_default=True, help="Processes that run seeds."
)
@click.option(
    "--mode",
    type=click.Choice(["peer", "leader"]),
    help="How members share out the shards.  [default: peer; leader in a large fleet]",
)
@click.option(
    "--leaders",
    is_flag=True,
    help="Compare our leader with the Java KCL's: six stories a seed, and a table.",
)
def simulate(
    *,
    seed: int | None,
    seeds: int | None,
    workers: int | None,
    shards: int | None,
    faults: str,
    minutes: float,
    mode: str | None,
    jobs: int,
    leaders: bool,
) -> None:
    """Run the shipped engine in a seeded world.

    Time is virtual, trouble is drawn from the seed, and every promise is checked as it runs: docs/simulation.md. The
    same seed and version give the same trace to the byte. Exits with 1 if a promise was broken, and prints the command
    that repeats it.

    With more than 50 workers only members and leases are simulated, without records, and a report shows how fast the
    fleet came to rest. With --leaders, fleets under load are led by us and by a port of the Java KCL's leader, through
    the same stories on the same seeds.
    """
    if leaders:
        numbers = range(seed or 0, (seed or 0) + (seeds or 1))
        _leaders(numbers, jobs, workers=workers, shards=shards)
        return
    from leasehold.simulation.faults import faults_from_names  # noqa: PLC0415 - a heavy import, for this command only
    from leasehold.simulation.simulate import SimulationOptions  # noqa: PLC0415

    is_large = workers is not None and workers > WORKERS_WITH_RECORDS_MAX
    options = SimulationOptions(
        seed=seed or 0,
        workers=workers,
        shards=shards,
        faults=faults_from_names(faults),
        faults_ms=round(minutes * 60_000),
        mode=Mode(mode or ("leader" if is_large else "peer")),
    )
    if options.faults_ms < 1_000:
        raise ConfigError(f"--minutes {minutes}: expected at least a simulated second, 0.02")
    if is_large:
        _large_fleet(options)
    elif seeds is None:
        _one(options)
    else:
        _many([replace(options, seed=options.seed + number) for number in range(seeds)], jobs)


def _one(options: Any) -> None:
    from leasehold.simulation.report import result_lines  # noqa: PLC0415 - as above
    from leasehold.simulation.simulate import simulate as run  # noqa: PLC0415

    outcome = run(options, show=print_line)
    for line in result_lines(outcome):
        print_line(line)
    if not outcome.has_passed:
        raise SystemExit(1)


def _many(runs: Sequence[Any], jobs: int) -> None:
    from leasehold.simulation.report import result_lines, summary_lines  # noqa: PLC0415 - as above

    began_s = monotonic()
    outcomes = []
    console = Console(stderr=True)
    columns = TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("seeds", total=len(runs))
        for outcome in _outcomes(runs, jobs):
            outcomes.append(outcome)
            progress.advance(task)
            if not outcome.has_passed:
                for line in result_lines(outcome):
                    print_line(line)
    for line in summary_lines(outcomes, monotonic() - began_s):
        print_line(line)
    if not all(outcome.has_passed for outcome in outcomes):
        raise SystemExit(1)


def _outcomes(runs: Sequence[Any], jobs: int) -> Iterator[Any]:
    with _processes(jobs) as pool:
        for future in as_completed([pool.submit(_run_quietly, options) for options in runs]):
            yield future.result()


def _processes(jobs: int) -> ProcessPoolExecutor:
    # Spawned and not forked: a fresh interpreter, whatever threads this one has.
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))


def _run_quietly(options: Any) -> Any:
    from leasehold.simulation.simulate import simulate as run  # noqa: PLC0415 - in the other process

    return replace(run(options), trace=())


def _large_fleet(options: Any) -> None:
    from benchmarks.large_fleet import simulate_large_fleet  # noqa: PLC0415 - as above

    report = simulate_large_fleet(
        seed=options.seed,
        workers=options.workers,
        shards=options.shards or 10 * options.workers,
        minutes=options.faults_ms / 60_000,
        mode=options.mode,
        show=print_line,
    )
    for line in report.lines():
        print_line(line)


def _leaders(seeds: Sequence[int], jobs: int, *, workers: int | None, shards: int | None) -> None:
    from benchmarks.leaders.comparison import STORIES, run_story, table_lines  # noqa: PLC0415 - as above

    sizes = {
        "workers": workers or _WORKERS_UNDER_LOAD,
        "shards": shards or 10 * (workers or _WORKERS_UNDER_LOAD),
    }
    with _processes(jobs) as pool:
        runs = [
            pool.submit(run_story, story, is_java=is_java, seed=seed, **sizes)
            for story in STORIES
            for seed in seeds
            for is_java in (False, True)
        ]
        for line in table_lines([run.result() for run in runs]):
            print_line(line)
