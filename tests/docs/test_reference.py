"""The reference pages are what the code says: `make reference` writes them."""

import ast
import re
from pathlib import Path

import pytest

from leasehold.core.finding import FINDING_KINDS
from leasehold.spark.options import OPTIONS as SPARK_OPTIONS
from leasehold.spark.options import source_options
from leasehold.worker.options import OPTIONS
from tools.reference.field_docs import FieldDoc, field_docs
from tools.reference.pages import PAGES, updated
from tools.reference.settings import GROUPS

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
DOCS: dict[str, FieldDoc] = {
    name: doc for group in GROUPS.values() for name, doc in field_docs(group).items()
}
KCL_SETTINGS = {
    line.partition(".")[2] for line in (ROOT / "tests" / "docs" / "kcl_settings.txt").read_text().split()
}
JAVA_ROWS = [
    (set(re.findall(r"`(\w+)`", kcl)), set(re.findall(r"`(\w+)`", ours)))
    for kcl, ours in re.findall(
        r"^\| (`[^|]*)\|([^|]*)\|", (ROOT / "docs" / "java.md").read_text(), re.MULTILINE
    )
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_up_to_date(page: Path) -> None:
    """Every generated block is what the code says now."""
    text = page.read_text(encoding="utf-8")
    assert text == updated(page, text), f"{page.name} is out of date: run `make reference`"


def test_every_setting_is_in_the_reference() -> None:
    """No group of settings is missing."""
    text = (REFERENCE / "settings.md").read_text(encoding="utf-8")
    assert [name for name in OPTIONS if f"| `{name}`<br>" not in text] == []


def test_every_setting_has_a_sentence() -> None:
    """The docstring below a field, which ends like a sentence."""
    assert DOCS.keys() == OPTIONS.keys()
    assert [name for name, doc in DOCS.items() if not doc.text.endswith(".")] == []
    assert [name for name, spec in SPARK_OPTIONS.items() if not spec.text.endswith(".")] == []


def test_the_names_of_the_kcl_agree_with_the_tables_for_users_of_java() -> None:
    """docs/java.md has the other direction, and reasons."""
    named = [(name, kcl) for name, doc in DOCS.items() for kcl in doc.kcl]
    assert len(named) > 40
    assert [kcl for _, kcl in named if kcl not in KCL_SETTINGS] == []
    assert [
        (name, kcl) for name, kcl in named if not any(kcl in row and name in ours for row, ours in JAVA_ROWS)
    ] == []


def test_the_defaults_of_spark_options_are_true() -> None:
    """A query with all of them gets the settings of a query with none."""
    required = {"streamName": "orders", "applicationName": "billing"}
    values = {
        name: match[1]
        for name, spec in SPARK_OPTIONS.items()
        if (match := re.fullmatch(r"`(.+)`", spec.default))
    }
    assert len(values) > 20
    values.pop("maxTriggerDelay")  # is refused without minRecordsPerTrigger
    assert source_options(required | values) == source_options(required)
    least = required | {"minRecordsPerTrigger": "5"}
    assert source_options(least) == source_options(least | {"maxTriggerDelay": "15m"})


def test_the_codes_of_findings_are_those_in_the_code() -> None:
    """A code is an argument of Finding, or of a function that makes one."""
    sources = (ROOT / "src" / "leasehold").rglob("*.py")
    calls = [
        node
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]
    found = {code for call in calls for code in _codes(call)}
    assert found == FINDING_KINDS.keys()


def _codes(call: ast.Call) -> list[str]:
    match call:
        case ast.Call(func=ast.Name(id="Finding"), keywords=keywords):
            given: list[ast.expr] = [each.value for each in keywords if each.arg == "code"]
        case ast.Call(func=ast.Name(id="_about" | "_finding"), args=[_, code, *_]):
            given = [code]
        case _:
            given = []
    return [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
