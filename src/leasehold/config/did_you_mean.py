"""Finds the known name that is closest to an unknown one, for "did you mean" hints in error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name most similar to `name`, ignoring case, or None if no name is similar.

    >>> nearest("MAX_RECORD", ["max_records", "max_wait"])
    'max_records'
    """
    by_lower_case = {each.lower(): each for each in known}
    matches = get_close_matches(name.lower(), by_lower_case, n=1, cutoff=cutoff)
    return by_lower_case[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """Return a hint that names the closest known name, or `otherwise` if no name is similar.

    >>> did_you_mean("strem", ["stream", "streams"], otherwise="see --help")
    'did you mean stream?'
    """
    match = nearest(name, known)
    return otherwise if match is None else f"did you mean {match}?"
