"""Which tests execute which lines, measured by one run of the quick tests."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import coverage
import pytest

# Tests by line number, for each file. Under ON_IMPORT are the tests that execute any function of the file.
CoverageMap = Mapping[str, Mapping[str, Sequence[str]]]
ON_IMPORT = "import"


class _ContextPerTest:
    """A pytest plugin: names the running test in the coverage data, and measures its time."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self.seconds: dict[str, float] = {}

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._measured.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


def measure(tests: Sequence[str], sources: Sequence[Path], kept_in: Path) -> CoverageMap:
    """Run the tests in a child process with coverage, or use the result of an earlier run."""
    if not kept_in.exists():
        child = os.fork()
        if child == 0:
            _measure_here(tests, sources, kept_in)
            os._exit(0)
        os.waitpid(child, 0)
    found: CoverageMap = json.loads(kept_in.read_text(encoding="utf-8"))
    return found


def _measure_here(tests: Sequence[str], sources: Sequence[Path], kept_in: Path) -> None:
    measured = coverage.Coverage(data_file=None, include=[str(source) for source in sources])
    plugin = _ContextPerTest(measured)
    measured.start()
    code = pytest.main([*tests, "-q", "-p", "no:randomly", "-p", "no:cacheprovider"], plugins=[plugin])
    measured.stop()
    assert code == 0, "the tests fail without any mutant"
    kept_in.write_text(json.dumps(_tests_by_line(measured, plugin.seconds)), encoding="utf-8")


def _tests_by_line(measured: coverage.Coverage, seconds: Mapping[str, float]) -> dict[str, Any]:
    """The tests of each line, the fastest first."""
    data = measured.get_data()
    found: dict[str, dict[str, list[str]]] = {}
    for file in data.measured_files():
        lines: dict[str, set[str]] = defaultdict(set)
        for line, contexts in data.contexts_by_lineno(file).items():
            tests = {context for context in contexts if context}
            lines[str(line)] |= tests
            lines[ON_IMPORT] |= tests
        found[file] = {
            line: sorted(tests, key=lambda test: seconds.get(test, 0.0)) for line, tests in lines.items()
        }
    return found
