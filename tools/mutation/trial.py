"""Runs tests against one mutant, in a forked process that imports the changed source instead of the file."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from enum import Enum
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest


class Outcome(Enum):
    """What happened to a mutant."""

    CAUGHT = "caught by tests"
    CAUGHT_BY_SIMULATOR = "caught by the simulator"
    SURVIVED = "SURVIVED"
    NOT_COVERED = "SURVIVED, no quick test executes it"


class _ChangedModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a text."""

    def __init__(self, name: str, file: str, source: str) -> None:
        self._name, self._file, self._source = name, file, source

    def find_spec(self, fullname: str, _path: Any, _target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=self._file)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self._file
        exec(compile(self._source, self._file, "exec"), module.__dict__)


def run_tests(tests: Sequence[str]) -> bool:
    """Run tests in this process. Returns whether all pass."""
    options = ["-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--timeout", "60"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return pytest.main([*tests, *options]) == pytest.ExitCode.OK


def passes_in_child(
    module: str, file: str, source: str, check: Callable[[], bool], *, deadline_s: float
) -> bool:
    """Whether a check passes with a changed module. A crash, or no result within the deadline, is a failure."""
    child = os.fork()
    if child == 0:
        _run_child(module, _ChangedModule(module, file, source), check)
    return _wait(child, deadline_s) == 0


def _run_child(module: str, changed: _ChangedModule, check: Callable[[], bool]) -> None:
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    sys.meta_path.insert(0, changed)
    code = 1
    try:
        # Now, because pytest puts an import hook of its own before this one.
        importlib.import_module(module)
        code = 0 if check() else 1
    finally:
        os._exit(code)


def _wait(child: int, deadline_s: float) -> int:
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1
