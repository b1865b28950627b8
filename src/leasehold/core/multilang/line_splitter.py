"""Splits the output of a child into lines, with a limit: a child that never ends its line cannot fill the memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end. `is_whole` is False if it is a part of a line that is longer than the limit."""

    content: bytes
    is_whole: bool = True


class LineSplitter:
    r"""Collects bytes and returns lines. They end with `\n`, `\r\n` or `\r`; empty lines are left out.

    >>> splitter = LineSplitter(5)
    >>> splitter.add(b"a\nb"), splitter.add(b"c\r\n\nlong li")
    ([Line(content=b'a', is_whole=True)], [Line(content=b'bc', is_whole=True)])
    >>> splitter.add(b"ne\n")
    [Line(content=b'long ', is_whole=False)]
    """

    def __init__(self, length_max: int) -> None:
        self._length_max = length_max
        self._rest = b""
        self._is_too_long = False  # the rest of the line is dropped

    def add(self, data: bytes) -> list[Line]:
        """Add bytes, and return the lines that they complete."""
        lines = []
        parts = data.replace(b"\r", b"\n").split(b"\n")
        for part in parts[:-1]:
            self._extend(part)
            lines += self.flush()
        self._extend(parts[-1])
        return lines

    def flush(self) -> list[Line]:
        """Return what was collected of a line that has not ended, and begin another line."""
        rest, is_whole = self._rest, not self._is_too_long
        self._rest, self._is_too_long = b"", False
        return [Line(rest, is_whole)] if rest else []

    @property
    def has_rest(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self._rest)

    def _extend(self, part: bytes) -> None:
        room = self._length_max - len(self._rest)
        self._is_too_long = self._is_too_long or len(part) > room
        self._rest += part[:room]
