"""Tables in Markdown."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_LINK: Final = re.compile(r"\]\((docs/[^)#]+)")


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. Line breaks within a cell become spaces."""
    lines = [_line(heads), "|" + "---|" * len(heads), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def code_list(names: Iterable[str]) -> str:
    """Names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def with_links_from(page: Path, text: str) -> str:
    """The text with its links relative to the page. In the code they begin at the root of the repository."""
    return _LINK.sub(lambda link: f"]({os.path.relpath(_ROOT / link[1], page.parent)}", text)
