"""A process in which pytest has imported and collected all quick tests. Each mutant is tried in a fork of it."""

from __future__ import annotations

import gc
import importlib
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, Phase, settings

from tools.mutation.live_code import LiveFunctions

# Each run draws the same examples, so a survivor is one in every run. A failure need not be made smaller.
settings.register_profile(
    "mutants",
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


class WarmSession:
    """The collected tests, and the functions of all modules."""

    def __init__(self, items: Sequence[pytest.Item]) -> None:
        self._items = {item.nodeid: item for item in items}
        self.functions = LiveFunctions()
        gc.collect()
        gc.freeze()  # forks share these objects

    @property
    def tests(self) -> Sequence[str]:
        return list(self._items)

    def run(self, tests: Iterable[str]) -> Iterator[Sequence[pytest.TestReport]]:
        """Run tests one after the other. Each yields its reports."""
        items = [self._items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            yield runtestprotocol(item, nextitem=following, log=False)

    def passes(self, tests: Sequence[str], usual_s: Mapping[str, float]) -> bool:
        """Run tests until one fails. Ends this process if one takes many times its usual processor time."""
        runs = self.run(tests)
        for test in tests:
            signal.setitimer(signal.ITIMER_PROF, 5 + 5 * usual_s.get(test, 10.0))
            if any(report.failed for report in next(runs)):
                return False
        signal.setitimer(signal.ITIMER_PROF, 0)
        return True


def with_warm_session(
    arguments: Sequence[str], modules: Sequence[str], use: Callable[[WarmSession], int]
) -> int:
    """Collect tests, import modules, and call a function instead of running the tests."""
    plugin = _InsteadOfRunning(modules, use)
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # leasehold is imported already
    code = pytest.main([*arguments, *options], plugins=[plugin])
    return plugin.code if code == pytest.ExitCode.OK else 2


class _InsteadOfRunning:
    """A pytest plugin."""

    def __init__(self, modules: Sequence[str], use: Callable[[WarmSession], int]) -> None:
        self._modules, self._use = modules, use
        self.code = 2

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for module in self._modules:
            importlib.import_module(module)
        self.code = self._use(WarmSession(session.items))
        return True
