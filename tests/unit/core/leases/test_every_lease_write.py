"""Every lease write is exactly the one in `every_lease_write.txt`: no condition, change or proof is lost unnoticed."""

import inspect
from pathlib import Path

from leasehold.core.leases import lease_rules
from tests.unit.core.leases.render_lease_writes import all_writes, render_all

EXPECTED = Path(__file__).parent / "every_lease_write.txt"
NO_WRITES = {"interpret_failed_renewal", "finished"}


def test_every_write_is_as_documented() -> None:
    """A changed write needs a change of docs/algorithm.md and of the expected text (see render_lease_writes.py)."""
    assert render_all().split("\n\n") == EXPECTED.read_text().rstrip("\n").split("\n\n")


def test_every_rule_is_rendered() -> None:
    """A new rule must be added to the text."""
    rules = {
        name
        for name, rule in inspect.getmembers(lease_rules, inspect.isfunction)
        if rule.__module__ == lease_rules.__name__ and not name.startswith("_")
    }
    rendered = {name.split(",")[0] for name, _ in all_writes()}
    assert {rule for rule in rules - NO_WRITES if rule.replace("_", " ") not in rendered} == set()
