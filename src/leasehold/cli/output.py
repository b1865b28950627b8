"""Output of the commands: tables and JSON. Control characters are escaped, so that data cannot affect the terminal."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

import click

from leasehold.core.shown_text import SENTENCE_LENGTH_MAX, column_widths, keep_end, shorten, shorten_ids
from leasehold.errors import LeaseholdError

_PIPED_WIDTH: Final = 1_000
_GAP: Final = 2  # between two columns
PROGRESS_EVERY_S: Final = 10.0


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table without borders, so that other tools can split its lines. Numbers are right-aligned.

    Ids that are longer than any of Kinesis are shortened, and on a terminal cells that are too long for its width. The
    end of an id stays. JSON has everything whole.
    """
    # Imported late, because a command that prints no table does not need it.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False)
    cells = [
        [escape_unprintable(shorten(shorten_ids(cell), SENTENCE_LENGTH_MAX)) for cell in row] for row in rows
    ]
    width = console.width if console.is_terminal else _PIPED_WIDTH
    widths = column_widths([columns, *cells], width, _GAP)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        is_number = bool(rows) and all(row[number].replace(",", "").isdigit() for row in rows)
        justify: Literal["right", "left"] = "right" if is_number else "left"
        table.add_column(keep_end(column, widths[number]), justify=justify, no_wrap=True)
    for row in cells:
        table.add_row(*(Text(keep_end(cell, widths[number])) for number, cell in enumerate(row)))
    # If not even short cells fit, the terminal breaks the lines.
    needed = sum(widths) + _GAP * (len(widths) - 1)
    Console(highlight=False, width=max(width, needed)).print(table)


class UnknownResult(click.ClickException):
    """The command could not find out what it was asked. For commands whose exit code 1 is an answer."""

    exit_code = 2


@contextmanager
def report_errors(failure: type[click.ClickException] = click.ClickException) -> Iterator[None]:
    """Report a `LeaseholdError` of the block in one sentence on stderr, and end with the exit code of `failure`."""
    try:
        yield
    except LeaseholdError as error:
        # The text may quote a name, a row or the response of a server.
        raise failure("\n".join(map(escape_unprintable, str(error).split("\n")))) from error


def print_line(text: str) -> None:
    """Print one line."""
    click.echo(escape_unprintable(text))


@contextmanager
def progress_lines(describe: Callable[[], str], every_s: float = PROGRESS_EVERY_S) -> Iterator[None]:
    """Print a line of progress to stderr every ten seconds, as long as the block runs.

    A thread prints it, because the block may wait for a process or a response.
    """
    has_ended = threading.Event()

    def print_progress() -> None:
        while not has_ended.wait(every_s):
            click.echo(escape_unprintable(describe()), err=True)

    thread = threading.Thread(target=print_progress, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def escape_unprintable(text: str) -> str:
    r"""Escape line breaks, colours and other control characters.

    >>> escape_unprintable("w-1\x1b[31m")
    'w-1\\x1b[31m'
    """
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural.

    >>> format_count(1, "lease"), format_count(2, "lease")
    ('1 lease', '2 leases')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
