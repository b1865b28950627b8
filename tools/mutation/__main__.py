"""`make mutants`: try every mutant of the critical modules, and a sample of all others.

A mutant is caught if a quick test fails, or if the simulator finds a broken promise in one of its worlds. Survivors of
critical modules must be in `explained.txt`, with the reason why no test can or should notice them; otherwise the exit
code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from tools.mutation.cold_trial import module_name
from tools.mutation.coverage_map import CoverageMap, measure, read
from tools.mutation.mutants import Mutant, mutants_of
from tools.mutation.trial import FAILED, PASSED, SURVIVORS, Outcome, run_in_child
from tools.mutation.trials import Trials, try_all
from tools.mutation.warm_session import WarmSession, with_warm_session

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "leasehold"
EXPLAINED = Path(__file__).parent / "explained.txt"
MEASURED = ROOT / ".pytest_cache" / "mutation-coverage"
# Lease rows and rules, silent owners, pins, checkpoints, archive keys and plans: no survivor without a written reason.
CRITICAL = (
    "core/leases/lease_rules.py",
    "core/leases/lease_row.py",
    "core/leases/row_writes.py",
    "core/leases/liveness.py",
    "core/exactly_once/pinned_batch.py",
    "core/exactly_once/shard_phase.py",
    "core/exactly_once/object_keys.py",
    "core/exactly_once/archive_plan.py",
    "core/exactly_once/position_ranges.py",
    "core/exactly_once/bounded_run.py",
    "core/exactly_once/lost_leases.py",
    "worker/checkpointing/progress.py",
    "worker/checkpointing/checkpoints.py",
    "worker/delivery/disposals.py",
)
SAMPLED = ("core", "fleet", "worker", "spark/query", "archive")
QUICK_TESTS = (
    "tests/unit",
    "tests/scenarios",
    "tests/properties",
    "tests/contract/test_lease_rows.py",
    "tests/contract/test_lease_writes.py",
    "src/leasehold/core",  # doctests
)
# The store in memory gives conditions the same meaning as the servers, and needs none.
WITHOUT_SERVERS = ("-k", "not (dynamodb_local or ministack or kinesis_local or sqlite)")
# The tests of these tools try mutants themselves.
NOT_MUTANTS = ("--ignore", "tests/unit/test_mutants.py")
MEASUREMENT_MAX_S = 3_600.0
WORLDS = 30


def main() -> int:
    arguments = _arguments()
    chosen = _choose(arguments)
    modules = sorted({module_name(SOURCE / mutant.path) for mutant in chosen})
    print(f"{len(chosen)} mutants in {len(modules)} modules", flush=True)
    tests = [*arguments.tests.split(), *WITHOUT_SERVERS, *NOT_MUTANTS]
    return with_warm_session(tests, modules, partial(_try_all, arguments=arguments, chosen=chosen))


def _try_all(session: WarmSession, *, arguments: argparse.Namespace, chosen: Sequence[Mutant]) -> int:
    covered = _coverage(session, _measured(arguments.tests), reuses=arguments.reuse_coverage)
    explained = _explained()
    trials = Trials(session, covered, SOURCE, arguments.seconds, arguments.worlds, explained)
    outcomes: dict[Mutant, Outcome] = {}
    for mutant, outcome in try_all(trials, chosen, arguments.jobs):
        outcomes[mutant] = outcome
        if outcome in SURVIVORS and mutant.name not in explained:
            print(f"{outcome.value}: {mutant.name} (line {mutant.line})", flush=True)
        if len(outcomes) % 100 == 0:
            print(f"[{len(outcomes)}/{len(chosen)}]", flush=True)
    assert len(outcomes) == len(chosen), "a child process has failed"
    return _report(outcomes, explained)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants ARGS=", description=__doc__)
    parser.add_argument("--only", default="", help="only modules whose path contains this text")
    parser.add_argument(
        "--sample", type=int, default=200, help="how many mutants of modules that are not critical"
    )
    parser.add_argument("--seed", type=int, default=1, help="the seed of the sample")
    parser.add_argument(
        "--worlds", type=int, default=WORLDS, help="how many simulated worlds a survivor runs in"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants are tried at a time")
    parser.add_argument("--tests", default=" ".join(QUICK_TESTS), help="the quick tests")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests that a survivor runs at most")
    parser.add_argument("--reuse-coverage", action="store_true", help="use the coverage of the last run")
    return parser.parse_args()


def _choose(arguments: argparse.Namespace) -> list[Mutant]:
    """All mutants of critical modules, and a sample of the others, of modules that match `--only`."""
    critical = [mutant for path in CRITICAL for mutant in mutants_of(SOURCE / path, path)]
    paths = [
        str(path.relative_to(SOURCE))
        for folder in SAMPLED
        for path in sorted((SOURCE / folder).rglob("*.py"))
    ]
    others = [
        mutant
        for path in paths
        if path not in CRITICAL and arguments.only in path
        for mutant in mutants_of(SOURCE / path, path)
    ]
    sample = random.Random(arguments.seed).sample(others, min(arguments.sample, len(others)))
    return [*(mutant for mutant in critical if arguments.only in mutant.path), *sample]


def _measured(tests: str) -> Path:
    """Where the coverage of these tests is kept."""
    return MEASURED / f"{hashlib.sha256(tests.encode()).hexdigest()[:12]}.json"


def _coverage(session: WarmSession, kept_in: Path, *, reuses: bool) -> CoverageMap:
    if not (reuses and kept_in.exists()):
        print("measuring which tests execute which lines", flush=True)
        kept_in.parent.mkdir(parents=True, exist_ok=True)
        code = run_in_child(
            lambda: PASSED if measure(session, SOURCE, kept_in) else FAILED,
            cpu_s=MEASUREMENT_MAX_S,
            deadline_s=MEASUREMENT_MAX_S,
            shows_output=True,
        )
        assert code == PASSED, "the tests must pass without any mutant"
    return read(kept_in)


def _report(outcomes: Mapping[Mutant, Outcome], explained: Collection[str]) -> int:
    by_module: dict[str, Counter[str]] = {}
    for mutant, outcome in outcomes.items():
        is_explained = outcome in SURVIVORS and mutant.name in explained
        shown = by_module.setdefault(mutant.path, Counter())
        shown["survived, explained" if is_explained else outcome.value] += 1
    for path, counts in [*sorted(by_module.items()), ("all", sum(by_module.values(), Counter()))]:
        print(
            f"{path}: {counts.total()} mutants: "
            + ", ".join(f"{n} {what}" for what, n in counts.most_common())
        )
    for mutant, outcome in outcomes.items():
        if mutant.name in explained and outcome not in SURVIVORS:
            print(f"no longer survives, delete it from {EXPLAINED.name}: {mutant.name}")
    unexplained = [
        mutant.name
        for mutant, outcome in outcomes.items()
        if outcome in SURVIVORS and mutant.path in CRITICAL and mutant.name not in explained
    ]
    for name in unexplained:
        print(f"no reason in {EXPLAINED.relative_to(ROOT)}: {name}")
    return 1 if unexplained else 0


def _explained() -> set[str]:
    lines = EXPLAINED.read_text(encoding="utf-8").splitlines() if EXPLAINED.exists() else []
    return {line.partition(" # ")[0].strip() for line in lines if line.strip() and not line.startswith("#")}


if __name__ == "__main__":
    sys.exit(main())
