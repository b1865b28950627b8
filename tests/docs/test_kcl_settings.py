"""docs/java.md names every setting of the Java KCL's configuration classes, and counterparts that exist."""

import re
from pathlib import Path

from leasehold.worker.options import OPTIONS

ROOT = Path(__file__).parents[2]
LISTED = (ROOT / "tests" / "docs" / "kcl_settings.txt").read_text().split()
SECTION = (
    (ROOT / "docs" / "java.md").read_text().partition("## Every setting of the KCL")[2].partition("\n## ")[0]
)
ROWS = [row.split("|")[1:] for row in SECTION.splitlines() if row.startswith("| `")]
NAME = re.compile(r"`(\w+)`")


def test_every_setting_of_the_kcl_is_named_and_none_that_does_not_exist() -> None:
    """The list comes from the jars."""
    named = {name for row in ROWS for name in NAME.findall(row[0])}
    known = {setting.partition(".")[2] for setting in LISTED}
    assert len(known) > 100
    assert known - named == set()
    assert named - known == set()


def test_each_setting_has_a_counterpart_that_exists_or_a_reason() -> None:
    """A counterpart is a setting of a consumer."""
    for kcl, ours, reason in (row[:3] for row in ROWS):
        counterparts = NAME.findall(ours)
        assert counterparts or reason.strip(), kcl
        assert [name for name in counterparts if name not in OPTIONS] == [], kcl
