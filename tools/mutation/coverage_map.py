"""Which tests execute which lines, and how long each takes: measured by one run of the quick tests."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import coverage

from tools.mutation.mutants import Mutant
from tools.mutation.warm_session import WarmSession


@dataclass(frozen=True, slots=True)
class CoverageMap:
    """The processor time of each test, and the tests of each line of each file."""

    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[str, Sequence[str]]]

    def tests_of(self, mutant: Mutant, file: Path, max_s: float) -> Sequence[str]:
        """The tests that execute the change, the fastest first. Tests of the module itself count as faster.

        Code that runs only at import belongs to every test that executes a function of the file. A new interpreter
        tries few of them, so all tests of the module itself come first. Together the tests take at most `max_s`
        seconds.
        """
        lines = self.lines.get(str(file), {})
        first, last = mutant.statement
        tests = {test for line in range(first, last + 1) for test in lines.get(str(line), ())}
        about = f"test_{file.stem}"
        runs_at_import = not tests
        if runs_at_import:
            tests = {test for found in lines.values() for test in found}
            # A test of a generated method, such as that of a dataclass, executes no line of the file.
            tests |= {test for test in self.seconds if about in test}

        def order(test: str) -> tuple[bool, float, str]:
            is_own = about in test
            return runs_at_import and not is_own, self.seconds[test] * (0.2 if is_own else 1.0), test

        ordered = sorted(tests, key=order)
        sums = accumulate(self.seconds[test] for test in ordered)
        return [test for test, spent in zip(ordered, sums, strict=True) if spent < max_s]


def read(kept_in: Path) -> CoverageMap:
    """The result of an earlier measurement."""
    found = json.loads(kept_in.read_text(encoding="utf-8"))
    return CoverageMap(found["seconds"], found["lines"])


def measure(session: WarmSession, source: Path, kept_in: Path) -> bool:
    """Run all tests with coverage. Call this in a fork: it starts a tracer. Returns whether all tests pass."""
    measured = coverage.Coverage(data_file=None, include=[f"{source}/*"])
    seconds: dict[str, float] = {}
    failed: list[str] = []
    measured.start()
    tests = session.tests
    runs = session.run(tests)
    for test in tests:
        measured.switch_context(test)
        started = time.process_time()
        reports = next(runs)
        seconds[test] = round(time.process_time() - started, 4)
        failed += [f"{test}\n{report.longreprtext}" for report in reports if report.failed]
    measured.stop()
    kept_in.write_text(json.dumps({"seconds": seconds, "lines": _tests_by_line(measured)}), encoding="utf-8")
    for each in failed:
        print(f"fails without any mutant: {each}", flush=True)
    return not failed


def _tests_by_line(measured: coverage.Coverage) -> Mapping[str, Mapping[str, Sequence[str]]]:
    data = measured.get_data()
    return {
        file: {
            str(line): sorted(tests)
            for line, contexts in data.contexts_by_lineno(file).items()
            if (tests := {context for context in contexts if context})
        }
        for file in data.measured_files()
    }
