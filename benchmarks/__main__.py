"""Runs the benchmarks, and compares their ratios with the documented ones and with the targets.

    python -m benchmarks [NAME ...] [--only COMPARISON ...] [--java] [--quick] [--repeats 2] [--json FILE]
        [--write-docs]
    python -m benchmarks --ratios

Results are added to the file of the earlier ones, each as soon as it is measured: a run of one comparison, or one that
is interrupted, leaves those of the others there. So do the tables of the documentation. Exit code 1: a documented ratio
is missed by more than a third.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from benchmarks.harness import Plan, Result, environment, print_result, read_results, write_results
from benchmarks.performance_docs import write_docs
from benchmarks.ratios import check_ratios, document_ratios

# The modules with a function `run(plan)` that yields results, and with the keys of these in `COMPARISONS`.
BENCHMARKS = {
    "worker": "benchmarks.worker_throughput",
    "aggregation": "benchmarks.aggregation",
    "idle": "benchmarks.idle_shards",
    "spark": "benchmarks.spark_throughput",
    "spark-latency": "benchmarks.spark_latency",
    "spark-idle": "benchmarks.spark_idle",
    "decisions": "benchmarks.decisions",
    "memory": "benchmarks.memory_limit",
}
WITH_JAVA = ("worker",)
REPEATS = 2
LAST_RUN, LAST_JAVA_RUN = Path("build/bench.json"), Path("build/bench-java.json")


def main() -> None:
    """Measure, print and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(BENCHMARKS)}")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="COMPARISON",
        help="only these tables, for example worker-1000",
    )
    parser.add_argument("--java", action="store_true", help="also run the consumers that need the Java KCL")
    parser.add_argument("--quick", action="store_true", help="one repeat, fewer cases")
    parser.add_argument(
        "--repeats", type=int, default=REPEATS, help=f"of each comparison, {REPEATS} unless given"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"where to add the results; {LAST_RUN}")
    parser.add_argument(
        "--write-docs", action="store_true", help="write tables, plots and ratios of this run into the docs"
    )
    parser.add_argument(
        "--ratios", action="store_true", help="measure nothing; compare the last run of each kind"
    )
    given = parser.parse_args()
    if given.ratios:
        print_ratios(read_last_runs(LAST_RUN, LAST_JAVA_RUN), with_unmeasured=True)
    unknown = set(given.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(BENCHMARKS)}")
    names = given.names or (WITH_JAVA if given.java else list(BENCHMARKS))
    only = frozenset(given.only)
    modules = [importlib.import_module(BENCHMARKS[name]) for name in names]
    known = [key for module in modules for key in module.COMPARISONS]
    if only - set(known):
        parser.error(f"unknown: {', '.join(sorted(only - set(known)))}; known are {', '.join(known)}")
    plan = Plan(given.repeats, given.java, given.quick, only)
    file = given.json or (LAST_JAVA_RUN if given.java else LAST_RUN)
    results = dict[str, Result]()
    for result in run_all(modules, plan):
        write_results(file, [result])
        results[result.key] = result
    sys.exit(finish(results, writes_docs=given.write_docs))


def finish(results: Mapping[str, Result], *, writes_docs: bool) -> int:
    """Compare a run with the documented ratios, then write it into the docs if asked to. Returns the exit code."""
    lines, all_hold = check_ratios(results)
    _print_lines(lines)
    if writes_docs:
        document_ratios(results.values())
        for kept in write_docs(list(results.values())):
            print(f"docs: {kept}")
    return 0 if all_hold else 1


def read_last_runs(*files: Path) -> dict[str, Result]:
    """The results of the last runs by their keys. A later file replaces results of an earlier one."""
    return {result.key: result for file in files for result in read_results(file)}


def print_ratios(results: Mapping[str, Result], *, with_unmeasured: bool = False) -> NoReturn:
    """Print the documented ratios beside the measured ones. Ends with exit code 1 if one is missed."""
    lines, all_hold = check_ratios(results, with_unmeasured=with_unmeasured)
    _print_lines(lines)
    sys.exit(0 if all_hold else 1)


def _print_lines(lines: Iterable[str]) -> None:
    print("\nDocumented ratios, measured ones and targets")
    for line in lines:
        print(f"  {line}")


def run_all(modules: Iterable[ModuleType], plan: Plan) -> Iterator[Result]:
    """Run benchmarks that have a wanted comparison. Yields each result when it is printed."""
    started, began = environment(), time.monotonic()
    for module in modules:
        if not any(map(plan.wants, module.COMPARISONS)):
            continue
        since = time.monotonic()
        for result in module.run(plan):
            result.environment = started
            print_result(result)
            print(f"  measured in {time.monotonic() - since:.0f} s", flush=True)
            yield result
            since = time.monotonic()
    print(f"\n{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
