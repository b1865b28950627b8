"""`make mutants`: try every mutant of the critical modules, and a sample of all others.

A mutant is caught if a quick test fails, or if the simulator finds a broken promise in one of its worlds. Survivors of
critical modules must be in `explained.txt`, with the reason why no test can or should notice them; otherwise the exit
code is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tools.mutation.coverage_map import ON_IMPORT, CoverageMap, measure
from tools.mutation.mutants import Mutant, mutants_of, source_of
from tools.mutation.trial import Outcome, passes_in_child, run_tests

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "leasehold"
EXPLAINED = Path(__file__).parent / "explained.txt"
MEASURED = ROOT / ".pytest_cache" / "mutation-coverage.json"
# Lease rules, pins, checkpoints, archive keys and plans: no survivor without a written reason.
CRITICAL = (
    "core/leases/lease_rules.py",
    "core/leases/row_writes.py",
    "core/exactly_once/pinned_batch.py",
    "core/exactly_once/shard_phase.py",
    "core/exactly_once/object_keys.py",
    "core/exactly_once/archive_plan.py",
    "core/exactly_once/position_ranges.py",
    "worker/checkpointing/progress.py",
    "worker/checkpointing/checkpoints.py",
)
SAMPLED = ("core", "fleet", "worker", "spark/query", "archive")
QUICK_TESTS = ("tests/unit", "tests/scenarios", "tests/properties", "tests/contract/test_lease_writes.py")
# The store in memory gives conditions the same meaning as the servers, and needs none.
WITHOUT_SERVERS = ("-k", "not (dynamodb_local or ministack or kinesis_local or sqlite)")
TESTS_MAX = 150
TESTS_DEADLINE_S = 300.0
WORLDS = 30
WORLDS_DEADLINE_S = 600.0


def main() -> int:
    arguments = _arguments()
    chosen = _choose(arguments)
    files = sorted({SOURCE / mutant.path for mutant in chosen})
    print(
        f"{len(chosen)} mutants in {len(files)} modules; measuring which tests execute which lines",
        flush=True,
    )
    if not arguments.reuse_coverage:
        MEASURED.unlink(missing_ok=True)
    MEASURED.parent.mkdir(exist_ok=True)
    covered = measure([*arguments.tests.split(), *WITHOUT_SERVERS], sorted(SOURCE.rglob("*.py")), MEASURED)
    outcomes: Counter[Outcome] = Counter()
    survivors: list[Mutant] = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = pool.map(partial(_try, covered=covered, worlds=arguments.worlds), chosen)
        for number, (mutant, outcome) in enumerate(zip(chosen, results, strict=True), start=1):
            outcomes[outcome] += 1
            if outcome in {Outcome.SURVIVED, Outcome.NOT_COVERED}:
                survivors.append(mutant)
                print(
                    f"[{number}/{len(chosen)}] {outcome.value}: {mutant.name} (line {mutant.line})",
                    flush=True,
                )
            elif number % 50 == 0:
                print(f"[{number}/{len(chosen)}]", flush=True)
    return _report(outcomes, survivors)


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
    parser.add_argument("--reuse-coverage", action="store_true", help="use the coverage of the last run")
    return parser.parse_args()


def _choose(arguments: argparse.Namespace) -> list[Mutant]:
    critical = [mutant for path in CRITICAL for mutant in mutants_of(SOURCE / path, path)]
    others = [
        mutant
        for folder in SAMPLED
        for path in sorted((SOURCE / folder).rglob("*.py"))
        if (shown := str(path.relative_to(SOURCE))) not in CRITICAL
        for mutant in mutants_of(path, shown)
    ]
    rng = random.Random(arguments.seed)
    sample = rng.sample(others, min(arguments.sample, len(others)))
    return [mutant for mutant in (*critical, *sample) if arguments.only in mutant.path]


def _try(mutant: Mutant, *, covered: CoverageMap, worlds: int) -> Outcome:
    file = SOURCE / mutant.path
    lines = covered.get(str(file), {})
    tests = lines.get(str(mutant.line)) or lines.get(ON_IMPORT) or []
    module = "leasehold." + mutant.path.removesuffix(".py").replace("/", ".")
    passes = partial(passes_in_child, module, str(file), source_of(mutant, file))
    if tests and not passes(partial(run_tests, tests[:TESTS_MAX]), deadline_s=TESTS_DEADLINE_S):
        return Outcome.CAUGHT
    if worlds and not passes(partial(_run_worlds, worlds), deadline_s=WORLDS_DEADLINE_S):
        return Outcome.CAUGHT_BY_SIMULATOR
    return Outcome.SURVIVED if tests else Outcome.NOT_COVERED


def _run_worlds(count: int) -> bool:
    """Run simulated worlds in both modes. Returns whether every promise is kept."""
    from leasehold.config.settings import Mode  # noqa: PLC0415 - only the child imports the changed module
    from leasehold.simulation.simulate import SimulationOptions, simulate  # noqa: PLC0415

    modes = (Mode.PEER, Mode.LEADER)
    return all(
        simulate(SimulationOptions(seed=seed, mode=modes[seed % 2], steady_refreshes=20)).has_passed
        for seed in range(count)
    )


def _report(outcomes: Counter[Outcome], survivors: list[Mutant]) -> int:
    explained = _explained()
    unexplained = [each for each in survivors if each.path in CRITICAL and each.name not in explained]
    total = sum(outcomes.values())
    alive = len(survivors)
    print(", ".join(f"{count} {outcome.value}" for outcome, count in outcomes.items()))
    print(f"{total} mutants, {alive} survived ({100 * (total - alive) / max(1, total):.1f} % caught)")
    for mutant in unexplained:
        print(f"no reason in {EXPLAINED.relative_to(ROOT)}: {mutant.name}")
    return 1 if unexplained else 0


def _explained() -> set[str]:
    lines = EXPLAINED.read_text(encoding="utf-8").splitlines() if EXPLAINED.exists() else []
    return {line.partition(" # ")[0].strip() for line in lines if line.strip() and not line.startswith("#")}


if __name__ == "__main__":
    sys.exit(main())
