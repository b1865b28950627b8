"""Runs the benchmarks, and compares their ratios with the documented ones.

    python -m benchmarks [NAME ...] [--java] [--quick] [--rounds 3] [--json FILE] [--write-docs]
    python -m benchmarks --ratios

Exit code 1: a documented ratio is missed by more than a third.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from benchmarks.harness import Plan, Result, check_ratios, environment, print_result, read_json, write_json
from benchmarks.performance_docs import write_docs

# The modules with a function `run(plan)` that yields results, in the order of a standard run.
BENCHMARKS = {
    "worker": "benchmarks.worker_throughput",
    "aggregation": "benchmarks.aggregation",
    "idle": "benchmarks.idle_shards",
    "spark": "benchmarks.spark_throughput",
    "spark-latency": "benchmarks.spark_latency",
    "spark-idle": "benchmarks.spark_idle",
    "decisions": "benchmarks.decisions",
}
WITH_JAVA = ("worker",)
ROUNDS = 2
LAST_RUN, LAST_JAVA_RUN = Path("build/bench.json"), Path("build/bench-java.json")


def main() -> None:
    """Measure, print and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(BENCHMARKS)}")
    parser.add_argument("--java", action="store_true", help="also run the consumers that need the Java KCL")
    parser.add_argument("--quick", action="store_true", help="one repeat, fewer cases")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="repeats of each comparison")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"where to write the results; {LAST_RUN}")
    parser.add_argument(
        "--write-docs", action="store_true", help="write tables and plots into docs/performance.md"
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
    results, started = run_all(list(names), Plan(given.rounds, given.java, given.quick))
    write_json(given.json or (LAST_JAVA_RUN if given.java else LAST_RUN), started, results.values())
    if given.write_docs:
        write_docs(started, list(results.values()))
    print_ratios(results)


def read_last_runs(*files: Path) -> dict[str, Result]:
    """The results of the last runs by their keys. A later file replaces results of an earlier one."""
    runs = [read_json(file)[1] for file in files if file.exists()]
    return {result.key: result for run in runs for result in run}


def print_ratios(results: Mapping[str, Result], *, with_unmeasured: bool = False) -> NoReturn:
    """Print the documented ratios beside the measured ones. Ends with exit code 1 if one is missed."""
    lines, all_hold = check_ratios(results, with_unmeasured=with_unmeasured)
    print("\nDocumented ratios\n" + "\n".join(f"  {line}" for line in lines))
    sys.exit(0 if all_hold else 1)


def run_all(names: list[str], plan: Plan) -> tuple[dict[str, Result], dict[str, str]]:
    """Run the named benchmarks. Returns the results by their keys, and the environment at the start."""
    started, results, began = environment(), dict[str, Result](), time.monotonic()
    for name in names:
        for result in importlib.import_module(BENCHMARKS[name]).run(plan):
            print_result(result, environment())
            results[result.key] = result
    print(f"\n{time.monotonic() - began:.0f} s in all")
    return results, started


if __name__ == "__main__":
    main()
