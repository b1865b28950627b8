"""The mutants of a module: which changes are made, and how they are named."""

import subprocess
import sys
from pathlib import Path

from tools.mutation.mutants import mutants_of, source_of

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


TRIAL = """
from tools.mutation.trial import passes_in_child

def is_original() -> bool:
    from leasehold.core import backoff
    return not hasattr(backoff, "IS_CHANGED")

for source in ("", "IS_CHANGED = True", "raise RuntimeError"):
    print(passes_in_child("leasehold.core.backoff", "backoff.py", source, is_original, deadline_s=60))
"""


def test_a_trial_imports_the_changed_module() -> None:
    """A mutant that was not imported would survive every test."""
    done = subprocess.run(
        [sys.executable, "-c", TRIAL],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "False", "False"]
