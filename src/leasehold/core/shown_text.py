"""Text from rows, as a page or a terminal may show it. Rows are untrusted: a name may be a megabyte long, or hide its
direction. Only what is shown is shortened: keys and JSON keep the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

# The longest id of Kinesis, with account and stream, has 173 characters.
NAME_LENGTH_MAX: Final = 180
SENTENCE_LENGTH_MAX: Final = 800

# A shard id of Kinesis has 20 characters. Its last ones distinguish it from others.
SHARD_ID_LENGTH: Final = 20
_FIRST_WIDTH_MIN: Final = SHARD_ID_LENGTH + 4  # with the beginning of a stream before it
_COLUMN_WIDTH_MIN: Final = 6

_LONG_WORD: Final = re.compile(rf"\S{{{NAME_LENGTH_MAX + 1},}}")


def shown(text: str, length_max: int = NAME_LENGTH_MAX) -> str:
    r"""Shorten a text in its middle, and escape control characters and those that change the direction of text.

    >>> shown("w-1\x1b[31m\u202e"), shown("a" * 500, 9), shown("<b>")
    ('w-1\\x1b[31m\\u202e', 'aaaaaa…aa', '<b>')
    """
    text = shorten(text, length_max)
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )


def shown_sentence(text: str) -> str:
    """The same for a sentence that quotes ids: each long id is shortened, so the words around it stay.

    >>> shown_sentence("owner " + "x" * 5_000 + " is silent").replace("x", "")
    'owner … is silent'
    """
    return shown(shorten_ids(text), SENTENCE_LENGTH_MAX)


def shorten_ids(text: str) -> str:
    """Shorten each word that is longer than any id of Kinesis.

    >>> len(shorten_ids("w" * 5_000)), shorten_ids("anna reads it")
    (180, 'anna reads it')
    """
    return _LONG_WORD.sub(lambda found: shorten(found[0], NAME_LENGTH_MAX), text)


def shorten(text: str, length_max: int) -> str:
    """Replace the middle of a long text by an ellipsis.

    >>> shorten("shardId-000000000000", 9)
    'shardI…00'
    """
    if len(text) <= length_max:
        return text
    tail = length_max // 4
    return f"{text[: length_max - tail - 1]}…{text[-tail:]}"


def column_widths(rows: Sequence[Sequence[str]], width: int, gap: int) -> list[int]:
    """How wide each column of a table is, so that a line has `width` characters if possible. The widest are cut first.

    The first column names the rows. It keeps the length of a shard id.

    >>> column_widths([("shardId-000000000000", "w" * 40, "12 s")], 60, 2)
    [20, 32, 4]
    """
    natural = [max(map(len, column)) for column in zip(*rows, strict=True)]
    least = [
        min(each, _FIRST_WIDTH_MIN if number == 0 else _COLUMN_WIDTH_MIN)
        for number, each in enumerate(natural)
    ]
    widths = list(natural)
    room = width - gap * (len(natural) - 1)
    while sum(widths) > room:
        shrinkable = [number for number, each in enumerate(widths) if each > least[number]]
        if not shrinkable:
            break
        widths[max(shrinkable, key=lambda number: widths[number])] -= 1
    return widths


def keep_end(text: str, length_max: int) -> str:
    """Shorten a text so that its end stays, which distinguishes ids, and of its beginning what there is room for.

    >>> keep_end("shardId-000000000012", 8), keep_end("123456789012:orders:1700000000:shardId-000000000012", 24)
    ('sh…00012', '123…shardId-000000000012')
    """
    if len(text) <= length_max:
        return text
    tail = SHARD_ID_LENGTH if length_max > SHARD_ID_LENGTH else length_max * 2 // 3
    return f"{text[: length_max - tail - 1]}…{text[-tail:]}"
