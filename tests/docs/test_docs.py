"""The documentation says what is there: its links lead somewhere, and every lease write has its section."""

import inspect
import re
from pathlib import Path

import pytest

from leasehold.core.leases import lease_rules
from leasehold.core.leases.row_writes import DeleteRow, PutRow, UpdateRow

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("**/*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """A link to a file of the project names a file that exists."""
    targets = [target for target in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_every_lease_write_is_documented_with_its_scenarios() -> None:
    """docs/algorithm.md has a section for each rule, and names a scenario file for it."""
    text = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")
    rules = [
        name
        for name, rule in inspect.getmembers(lease_rules, inspect.isfunction)
        if rule.__module__ == lease_rules.__name__ and _returns_a_write(rule)
    ]
    assert len(rules) == 20
    for name in rules:
        title = name.replace("_", " ")
        assert re.search(rf"^### .*\b{title}\b", text, re.MULTILINE), f"no section for {title}"
        assert f"lease_writes/{name}.json" in text, f"no scenario file named for {title}"


def _returns_a_write(rule: object) -> bool:
    annotation = inspect.signature(rule).return_annotation if callable(rule) else ""
    return annotation in {"PutRow", "UpdateRow", "DeleteRow", PutRow, UpdateRow, DeleteRow} and not getattr(
        rule, "__name__", "_"
    ).startswith("_")
