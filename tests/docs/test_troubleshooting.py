"""docs/troubleshooting.md quotes texts that are really printed, so a search for an error finds its row."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
# Printed by Spark itself.
OTHERS = {"Python worker failed to connect back"}


def test_every_quoted_text_is_in_the_code() -> None:
    """The first column quotes parts of messages, as the source has them."""
    # A message may be split over several literals.
    joined = re.sub(
        r"\"\s*\n\s*f?\"", "", "\n".join(p.read_text() for p in sorted((ROOT / "src").rglob("*.py")))
    )
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    quoted = [text for row in rows for text in re.findall(r"`([^`]+)`", row)]
    assert len(quoted) > 25
    assert [text for text in quoted if text not in OTHERS and text.strip() not in joined] == []
