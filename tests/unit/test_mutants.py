"""The mutants of a module: which changes are made, and how they are named."""

import importlib.util
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tools.mutation.cold_trial import try_cold
from tools.mutation.coverage_map import CoverageMap
from tools.mutation.live_code import CannotReplaceError, LiveFunctions
from tools.mutation.mutants import mutants_of, source_of, trees_of
from tools.mutation.trial import FAILED, PASSED, run_in_child

ROOT = Path(__file__).parents[2]

SOURCE = '''
"""A module."""

LIMIT = 3

def write(lease, at: int = 1) -> bool:
    """Return whether it was written."""
    if lease.is_free and at < LIMIT:
        store(when=(FREE, UNCHANGED), set={"at": at})
    return not lease.is_ours
'''


def test_every_change_is_made_once_and_has_a_name(tmp_path: Path) -> None:
    """Numbers, comparisons, boolean operators, calls, and entries of conditions are changed."""
    file = tmp_path / "leases.py"
    file.write_text(SOURCE)
    found = list(mutants_of(file, "leases.py"))
    assert [mutant.name.removeprefix("leases.py ") for mutant in found] == [
        "<module>: 3 -> 4",
        "write: 1 -> 2",
        "write: lease.is_free and at < LIMIT -> lease.is_free or at < LIMIT",
        "write: at < LIMIT -> at <= LIMIT",
        "write: store(when=(FREE, UNCHANGED), set={'at': at}) -> pass",
        "write: store(when=...): (FREE, UNCHANGED) -> (UNCHANGED,)",
        "write: store(when=...): (FREE, UNCHANGED) -> (FREE,)",
        "write: store(set=...): {'at': at} -> {}",
        "write: not lease.is_ours -> lease.is_ours",
    ]
    sources = [source_of(mutant, file) for mutant in found]
    assert len(set(sources)) == len(found)
    assert "store(when=(UNCHANGED,), set={'at': at})" in sources[5]


def test_tests_of_a_module_come_first_for_code_that_runs_at_import(tmp_path: Path) -> None:
    """A new interpreter tries few of the many tests that execute a module. Of other code the fast ones come first."""
    file = tmp_path / "leases.py"
    file.write_text(SOURCE)
    constant, *_, last = mutants_of(file, "leases.py")
    seconds = {"test_rules.py::quick": 0.1, "test_leases.py::slow": 2.0, "test_leases.py::own": 0.3}
    covered = CoverageMap(seconds, {str(file): {str(last.line): list(seconds)}})
    own, slow, quick = "test_leases.py::own", "test_leases.py::slow", "test_rules.py::quick"
    assert covered.tests_of(constant, file, max_s=60) == [own, slow, quick]
    assert covered.tests_of(last, file, max_s=60) == [own, quick, slow]
    assert covered.tests_of(last, file, max_s=1) == [own, quick]


LIVE = """
LIMIT = 3

class Lease:
    def may_take(self, at):
        return at < LIMIT

def keep():
    limit = 5
    return lambda at: at < limit
"""


def test_functions_that_other_modules_hold_get_the_code_of_a_mutant(tmp_path: Path) -> None:
    """Bound methods, and functions within functions. A constant was read at import, so it needs a new import."""
    file = tmp_path / "live_leases.py"
    file.write_text(LIVE)
    module = _import(file)
    lease, keep = module.Lease(), module.keep
    may_take = lease.may_take
    functions = LiveFunctions()
    constant, taken, kept, compared = mutants_of(file, "live_leases.py")
    assert not may_take(3)
    functions.replace(str(file), *trees_of(taken, file))
    assert may_take(3)
    assert not keep()(5)
    functions.replace(str(file), *trees_of(compared, file))
    assert keep()(5)
    functions.replace(str(file), *trees_of(kept, file))
    assert keep()(5)
    assert not keep()(6)
    with pytest.raises(CannotReplaceError):
        functions.replace(str(file), *trees_of(constant, file))


def _import(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_new_interpreter_imports_the_changed_module() -> None:
    """A mutant that was not imported would survive every test."""
    file = ROOT / "src" / "leasehold" / "core" / "position.py"
    # LATEST gets the order of TRIM_HORIZON.
    order = [each for each in mutants_of(file, "core/position.py") if each.function == "<module>"][-1]
    tests = "tests/unit/core/test_position.py"
    unaware, aware = (
        f"{tests}::test_numbers_are_compared_as_numbers",
        f"{tests}::test_sentinels_sort_below_and_above_all_numbers",
    )
    assert try_cold(order, file, [unaware], worlds=0, deadline_s=120) == PASSED
    assert try_cold(order, file, [unaware, aware], worlds=0, deadline_s=120) == FAILED


def _sleep() -> int:
    time.sleep(60)
    return PASSED


def _crash() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return PASSED


def test_a_child_that_does_not_end_has_failed() -> None:
    """A mutant may wait for ever or crash."""
    assert run_in_child(lambda: PASSED, cpu_s=30, deadline_s=60) == PASSED
    assert run_in_child(_sleep, cpu_s=30, deadline_s=0.2) == FAILED
    assert run_in_child(_sleep, cpu_s=30, deadline_s=3_600, idle_max_s=0.5) == FAILED
    assert run_in_child(_crash, cpu_s=30, deadline_s=60) != PASSED
