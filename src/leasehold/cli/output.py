"""What commands print: tables for people, JSON for programs. Text from outside cannot steer a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPED_WIDTH: Final = 1_000


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON document."""
    click.echo(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table without a frame, so that it can be cut with other tools; numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        is_number = bool(rows) and all(row[number].replace(",", "").isdigit() for row in rows)
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(escape_unprintable(cell)) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPED_WIDTH)
    console.print(table)


def print_line(text: str) -> None:
    """One line."""
    click.echo(escape_unprintable(text))


def escape_unprintable(text: str) -> str:
    r"""Text that stays in its line and has no colours of its own.

    >>> escape_unprintable("w-1\x1b[31m")
    'w-1\\x1b[31m'
    """
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def format_count(number: int, noun: str) -> str:
    """A number of things.

    >>> format_count(1, "lease"), format_count(2, "lease")
    ('1 lease', '2 leases')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
