"""Decides what happens to each mutant: tests first, then simulated worlds."""

from __future__ import annotations

import os
import traceback
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.mutation.cold_trial import try_cold
from tools.mutation.coverage_map import CoverageMap
from tools.mutation.live_code import CannotReplaceError
from tools.mutation.mutants import Mutant, trees_of
from tools.mutation.trial import CANNOT_REPLACE, FAILED, PASSED, Outcome, run_in_child
from tools.mutation.warm_session import WarmSession
from tools.mutation.worlds import worlds_pass

# A new interpreter runs one test after the other as well, but first imports and collects them.
COLD_TESTS_MAX = 300
WORLD_MAX_S = 10.0  # on average; a world takes a second or two


@dataclass(frozen=True, slots=True)
class Trials:
    """Tries mutants of the modules below `source`."""

    session: WarmSession
    covered: CoverageMap
    source: Path
    tests_max_s: float
    worlds: int
    # Survivors with a written reason: no world notices them.
    explained: Collection[str]

    def outcome(self, mutant: Mutant) -> Outcome:
        """Try one mutant."""
        tests = self.covered.tests_of(mutant, self.source / mutant.path, self.tests_max_s)
        if tests and self._try(mutant, tests, worlds=0) != PASSED:
            return Outcome.CAUGHT
        worlds = 0 if mutant.name in self.explained else self.worlds
        if worlds and self._try(mutant, [], worlds=worlds) != PASSED:
            return Outcome.CAUGHT_BY_SIMULATOR
        return Outcome.SURVIVED if tests else Outcome.NOT_COVERED

    def _try(self, mutant: Mutant, tests: Sequence[str], *, worlds: int) -> int:
        """The exit code of a child with the mutant. A mutant that needs many times the usual time is caught."""
        file = self.source / mutant.path
        usual_s = sum(self.covered.seconds[test] for test in tests)

        def check() -> int:
            try:
                self.session.functions.replace(str(file), *trees_of(mutant, file))
            except CannotReplaceError:
                return CANNOT_REPLACE
            return (
                PASSED if self.session.passes(tests, self.covered.seconds) and worlds_pass(worlds) else FAILED
            )

        cpu_s = 60 + 5 * usual_s + worlds * WORLD_MAX_S
        deadline_s = 5 * cpu_s  # other programs may run beside it
        code = run_in_child(check, cpu_s=cpu_s, deadline_s=deadline_s)
        if code == CANNOT_REPLACE:
            few = tests[:COLD_TESTS_MAX]
            return try_cold(mutant, file, few, worlds=worlds, deadline_s=60 + deadline_s)
        return code


def try_all(trials: Trials, chosen: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, Outcome]]:
    """Try mutants in several processes. Yields the outcomes as they come."""
    reading, writing = os.pipe()
    children = []
    for job in range(jobs):
        child = os.fork()
        if child == 0:
            _report_outcomes(trials, chosen[job::jobs], writing)
        children.append(child)
    os.close(writing)
    by_name = {mutant.name: mutant for mutant in chosen}
    with os.fdopen(reading, encoding="utf-8") as lines:
        for line in lines:
            outcome, _, name = line.rstrip("\n").partition("\t")
            yield by_name[name], Outcome[outcome]
    for child in children:
        os.waitpid(child, 0)


def _report_outcomes(trials: Trials, chosen: Sequence[Mutant], writing: int) -> None:
    """In a child: write a line for each mutant. A short line is never mixed with the line of another child."""
    code = FAILED
    try:
        for mutant in chosen:
            os.write(writing, f"{trials.outcome(mutant).name}\t{mutant.name}\n".encode())
        code = PASSED
    except BaseException:  # noqa: BLE001 - a fork must never return into the code of its parent
        traceback.print_exc()
    finally:
        os._exit(code)
