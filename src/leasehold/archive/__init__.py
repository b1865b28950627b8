"""Exactly-once objects in an object store or a folder: what both runtimes write to. See docs/archive.md.

from leasehold.archive import ArchiveSettings
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    # For type checkers and editors; at run time a name is imported when it is first asked for (see below).
    from leasehold.archive.archive import Archive as Archive
    from leasehold.archive.archive import WriteReport as WriteReport
    from leasehold.archive.settings import ArchiveSettings as ArchiveSettings

_HOMES: Final = {
    "Archive": "archive",
    "WriteReport": "archive",
    "ArchiveSettings": "settings",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - a test compares it with what type checkers see


def __getattr__(name: str) -> object:
    """Names are imported on demand: each Spark task worker would otherwise pay for the plain worker's modules."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
