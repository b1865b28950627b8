"""Text from rows, as a page or a terminal may show it. Rows are untrusted: a name may be a megabyte long, or hide its
direction. Only what is shown is shortened: keys and JSON keep the whole text.
"""

from __future__ import annotations

import re
from typing import Final

# The longest id of Kinesis, with account and stream, has 173 characters.
NAME_LENGTH_MAX: Final = 180
SENTENCE_LENGTH_MAX: Final = 800

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
