"""Writes records exactly once as objects in an object store or a folder, from the worker and from Spark.

`read` reads them back.

See docs/archive.md.

from leasehold.archive import ArchiveSettings
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    # For type checkers and editors. At run time, `__getattr__` imports a name at its first use.
    from leasehold.archive.archive import Archive as Archive
    from leasehold.archive.archive import WriteReport as WriteReport
    from leasehold.archive.reading import read as read
    from leasehold.archive.settings import ArchiveSettings as ArchiveSettings

_HOMES: Final = {
    "Archive": "archive",
    "WriteReport": "archive",
    "ArchiveSettings": "settings",
    "read": "reading",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - a test compares it with what type checkers see


def __getattr__(name: str) -> object:
    """Import a name at its first use, so that a Spark task worker imports only what it needs."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
