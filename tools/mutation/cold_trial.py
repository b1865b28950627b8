"""Tries one mutant in a new interpreter: `python -m tools.mutation.cold_trial FILE NUMBER WORLDS < tests`.

Needed for code that runs at import, such as a constant: other modules have copied its value.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tools.mutation.mutants import Mutant, mutants_of, trees_of
from tools.mutation.trial import FAILED, PASSED


def try_cold(mutant: Mutant, file: Path, tests: Sequence[str], *, worlds: int, deadline_s: float) -> int:
    """Run tests, then simulated worlds. Returns an exit code; too much time is a failure."""
    command = [sys.executable, "-m", "tools.mutation.cold_trial", str(file), str(mutant.number), str(worlds)]
    try:
        done = subprocess.run(
            command, input="\n".join(tests), text=True, capture_output=True, timeout=deadline_s, check=False
        )
    except subprocess.TimeoutExpired:
        return FAILED
    return done.returncode


def main(file: Path, number: int, worlds: int, tests: Sequence[str]) -> int:
    mutant = next(each for each in mutants_of(file, str(file)) if each.number == number)
    module = module_name(file)
    code = compile(trees_of(mutant, file)[1], str(file), "exec")
    sys.meta_path.insert(0, _ChangedModule(module, code))
    # Now, because pytest puts an import hook of its own before this one.
    importlib.import_module(module)
    from tools.mutation.warm_session import with_warm_session  # noqa: PLC0415 - imports the changed module
    from tools.mutation.worlds import worlds_pass  # noqa: PLC0415

    if tests:
        warm = with_warm_session(
            [*tests], [], lambda session: PASSED if session.passes(tests, {}) else FAILED
        )
        if warm != PASSED:
            return FAILED
    return PASSED if worlds_pass(worlds) else FAILED


def module_name(file: Path) -> str:
    """The name by which a file below `src` is imported."""
    parts = file.with_suffix("").parts
    return ".".join(parts[len(parts) - parts[::-1].index("src") :])


class _ChangedModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from changed code."""

    def __init__(self, name: str, code: CodeType) -> None:
        self._name, self._code = name, code

    def find_spec(self, fullname: str, _path: Any, _target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=self._code.co_filename)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self._code.co_filename
        exec(self._code, module.__dict__)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.stdin.read().splitlines()))
