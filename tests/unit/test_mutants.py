"""The mutants of a module: which changes are made, and how they are named."""

from pathlib import Path

from tools.mutation.mutants import mutants_of

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
    assert len({mutant.source for mutant in found}) == len(found)
    assert all("A module." in mutant.source for mutant in found)
