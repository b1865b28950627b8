"""The documentation matches the code: every link has a target, and every lease write has a section."""

import inspect
import re
from pathlib import Path

import pytest

from leasehold.core.leases import lease_rules
from leasehold.core.leases.row_writes import DeleteRow, PutRow, UpdateRow

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
    *sorted((ROOT / "tests").glob("**/README.md")),
]
LINK = re.compile(r"\]\((?P<file>[^)#\s]*)(?:#(?P<anchor>[^)]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    """A link to a file of the project names an existing file, and its anchor names a heading there."""
    links = [link for link in LINK.finditer(_text(page)) if "://" not in link["file"]]
    files = {link["file"]: (page.parent / link["file"]) if link["file"] else page for link in links}
    missing = [name for name, target in files.items() if not target.exists()]
    assert missing == []
    wrong = [
        link[0] for link in links if link["anchor"] and link["anchor"] not in _anchors(files[link["file"]])
    ]
    assert wrong == []


def test_every_lease_write_is_documented_with_its_scenarios() -> None:
    """docs/algorithm.md has a section for each rule, and names its scenario file."""
    text = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")
    rules = [
        name
        for name, rule in inspect.getmembers(lease_rules, inspect.isfunction)
        if rule.__module__ == lease_rules.__name__ and _returns_a_write(rule)
    ]
    assert len(rules) == 25
    for name in rules:
        title = name.replace("_", " ")
        assert re.search(rf"^### .*\b{title}\b", text, re.MULTILINE), f"no section for {title}"
        assert f"lease_writes/{name}.json" in text, f"no scenario file named for {title}"


def _text(page: Path) -> str:
    return CODE_BLOCK.sub("", page.read_text(encoding="utf-8"))


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(_text(page))}


def _returns_a_write(rule: object) -> bool:
    annotation = inspect.signature(rule).return_annotation if callable(rule) else ""
    return annotation in {"PutRow", "UpdateRow", "DeleteRow", PutRow, UpdateRow, DeleteRow} and not getattr(
        rule, "__name__", "_"
    ).startswith("_")
