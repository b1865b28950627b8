"""Finds the generated blocks of the pages, and fills them in.

A block begins with `<!-- reference: KIND WORDS -->` and ends with `<!-- end of reference -->`. In docs/cli.md, a block
begins with `$ leasehold COMMAND --help`.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tools.reference import commands, errors, events, findings, metrics, settings, spark_options
from tools.reference.tables import with_links_from

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGES: Final = (DOCS / "cli.md", *sorted((DOCS / "reference").glob("*.md")))
KINDS: Final[Mapping[str, Callable[..., str]]] = {
    "settings": settings.table,
    "spark-options": spark_options.table,
    "events": events.table,
    "prometheus": metrics.prometheus_table,
    "cloudwatch": metrics.cloudwatch_table,
    "findings": findings.table,
    "errors": errors.table,
}
_BLOCK: Final = re.compile(
    r"(?P<begin><!-- reference: (?P<words>[^>]+) -->\n).*?(?P<end><!-- end of reference -->)", re.DOTALL
)


def updated(page: Path, text: str) -> str:
    """The text of a page with every block as the code says now."""
    filled = _BLOCK.sub(lambda block: f"{block['begin']}\n{_content(page, block)}\n{block['end']}", text)
    return commands.updated(filled)


def _content(page: Path, block: re.Match[str]) -> str:
    kind, *arguments = block["words"].split()
    return with_links_from(page, KINDS[kind](*arguments))
