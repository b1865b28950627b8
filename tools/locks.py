"""Reads the lock files in `requirements`: which packages in which versions, with which hashes."""

import re
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"
_PINNED = re.compile(r"(?m)^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)(?P<rest>(?:.*\\\n)*.*)$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class Locked(NamedTuple):
    """A package in a lock file."""

    name: str
    version: str
    hashes: tuple[str, ...]


def read_lock(text: str) -> list[Locked]:
    r"""The packages of a lock file. A package may occur twice, for different versions of Python.

    >>> read_lock("A.b==1 ; python_version < '3.12' \\\n    --hash=sha256:" + "0" * 64)[0][:2]
    ('a-b', '1')
    """
    return [
        Locked(canonicalize_name(found["name"]), found["version"], tuple(_HASH.findall(found["rest"])))
        for found in _PINNED.finditer(text)
    ]
