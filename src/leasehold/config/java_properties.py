r"""Reads the format of `java.util.Properties`: `key = value`, `key: value` or `key value`, one a line.

A line that begins with `#` or `!` is a comment. A backslash at the end continues the line; elsewhere `\t`, `\n`, `\r`,
`\f` and `\uXXXX` are escapes, and `\x` is `x` for any other character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from leasehold.errors import ConfigError

_BLANKS: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.)|$)", re.DOTALL)
_BAD_ESCAPE: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u(?![0-9a-fA-F]{4})")
_LINE_END: Final = re.compile(r"\r\n|\r|\n")


class Property(NamedTuple):
    """One property, with the number of its first line."""

    key: str
    value: str
    line: int


def parse_properties(content: bytes) -> list[Property]:
    r"""Return the properties in the order of the file. A key may appear more than once; in Java the last one counts.

    The bytes are UTF-8 or, if they are not, ISO-8859-1, as in Java. Raises ConfigError for a broken `\u` escape.

    >>> [(each.key, each.value) for each in parse_properties(b"a = 1\n# no\nb:two \\\n   words\nc\\ d\te")]
    [('a', '1'), ('b', 'two words'), ('c d', 'e')]
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("iso-8859-1")
    return [_parse_line(line, number) for number, line in _logical_lines(text)]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their continuations joined, without comments and empty lines."""
    joined, began = "", 0
    for number, natural in enumerate(_LINE_END.split(text), start=1):
        line = natural.lstrip(_BLANKS)
        if not joined:
            began = number
            if not line or line[0] in "#!":
                continue
        joined += line
        backslashes = len(joined) - len(joined.rstrip("\\"))
        if backslashes % 2:
            joined = joined[:-1]
            continue
        yield began, joined
        joined = ""
    if joined:
        yield began, joined


def _parse_line(line: str, number: int) -> Property:
    if _BAD_ESCAPE.search(line):
        raise ConfigError(f"line {number}: \\u needs four hexadecimal digits; write \\\\ for a backslash")
    end = _end_of_key(line)
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in {"=", ":"}:
        rest = rest[1:].lstrip(_BLANKS)
    try:
        return Property(_unescape(line[:end]), _unescape(rest), number)
    except UnicodeDecodeError:
        raise ConfigError(f"line {number}: \\u escapes have half of a character; write both halves") from None


def _end_of_key(line: str) -> int:
    """Return the place of the first separator that is not escaped."""
    place = 0
    while place < len(line) and line[place] not in f"=:{_BLANKS}":
        place += 2 if line[place] == "\\" else 1
    return min(place, len(line))


def _unescape(text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        if found[1] is not None:
            return chr(int(found[1], 16))
        return _ESCAPES.get(found[2], found[2]) if found[2] else ""

    # A character above U+FFFF is written as two escapes.
    return _ESCAPE.sub(replace, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
