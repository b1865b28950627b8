"""A hook of mkdocs: what lies outside of docs/ is not part of the site, so its links become plain text.

tests/docs checks all links of the files themselves.
"""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[(?P<text>[^\]]+)\]\((?:\.\./)+(?!docs/)[^)]*\)")


def on_page_markdown(markdown: str, **_page: Any) -> str:
    """Replace each link to a file outside of docs/ by its text."""
    return _OUTSIDE.sub(lambda link: link["text"], markdown)
