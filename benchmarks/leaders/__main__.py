"""Compares our assignment strategy with the Java KCL's, and prints a table.

python -m benchmarks.leaders [--seeds 3] [--seed 0] [--workers 10] [--shards 100] [--jobs 2]
"""

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from benchmarks.leaders.comparison import CASES, run_case, table_lines


def main() -> None:
    """Run every case with both strategies on each seed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.leaders", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds")
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2, help="operating-system processes")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        runs = [
            pool.submit(
                run_case, case, is_java=is_java, seed=seed, workers=options.workers, shards=options.shards
            )
            for case in CASES
            for seed in range(options.seed, options.seed + options.seeds)
            for is_java in (False, True)
        ]
        print("\n".join(table_lines([run.result() for run in runs])))


if __name__ == "__main__":
    main()
