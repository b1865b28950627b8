"""Text from rows, as a page may show it. Rows are untrusted: a name may be a megabyte long, or hide its direction."""

from __future__ import annotations

from typing import Final

NAME_LENGTH_MAX: Final = 160
SENTENCE_LENGTH_MAX: Final = 800


def shown(text: str, length_max: int = NAME_LENGTH_MAX) -> str:
    r"""Shorten a text in its middle, and escape control characters and those that change the direction of text.

    >>> shown("w-1\x1b[31m\u202e"), shown("a" * 500, 9), shown("<b>")
    ('w-1\\x1b[31m\\u202e', 'aaaaaa…aa', '<b>')
    """
    if len(text) > length_max:
        tail = length_max // 4
        text = f"{text[: length_max - tail - 1]}…{text[-tail:]}"
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )
