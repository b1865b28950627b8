"""Whether an archive has all records of its stream, or only a part of them.

A writer that divides records between several archives (by a column, by stream, or failed records apart) notes that in
each of them, and at the place that it was given, before it writes the first object there. The note stays for good: an
archive that was divided once does not have all records. What compares an archive with its stream refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import orjson

from leasehold.archive.settings import ArchiveSettings
from leasehold.errors import ConfigError
from leasehold.ports import ObjectStore

# The underscore hides the object from Spark.
NOTE: Final = "_leasehold_division.json"


@dataclass(frozen=True, slots=True)
class Division:
    """How a writer divides records."""

    column: str | None = None  # an archive for each of its values
    errors: str | None = None  # the prefix of failed records
    streams: bool = False  # an archive for each of several streams

    @classmethod
    def of(cls, settings: ArchiveSettings) -> Division:
        """The division by columns. The settings of one stream."""
        return cls(settings.partition_column, settings.error_prefix or None)

    def to_note(self) -> bytes:
        """The content of the object that says so."""
        given = {"column": self.column, "errors": self.errors, "streams": self.streams or None}
        return orjson.dumps({name: value for name, value in given.items() if value is not None})


def note_name(prefix: str) -> str:
    """The name of the note of the archive below a prefix."""
    return f"{prefix}/{NOTE}" if prefix else NOTE


async def require_undivided(objects: ObjectStore, prefix: str, *, purpose: str) -> None:
    """Raise ConfigError if records of the stream are in other archives, too.

    Call it after the listing: a writer creates the note before the first object that is only a part.
    """
    note = await objects.get(note_name(prefix))
    if note is not None:
        place = f"the archive below prefix {prefix!r}" if prefix else "the archive"
        raise ConfigError(f"{place} {_describe(note)}, so it cannot be used {purpose}: {_remedy(note)}")


def _describe(note: bytes) -> str:
    found = _read(note)
    if "streams" in found:
        return "is divided: each of several streams has an archive of its own"
    reasons = []
    if "column" in found:
        reasons.append(f"by column {found['column']!r}")
    if "errors" in found:
        reasons.append(f"failed ones below prefix {found['errors']!r}")
    return (
        f"has only some of the records: its writer has divided them ({', '.join(reasons) or 'in some way'})"
    )


def _remedy(note: bytes) -> str:
    if "streams" in _read(note):
        return "name the archive of one stream by its prefix, such as stream=orders"
    return "name an archive of the same stream that is written without a partition column and an error prefix"


def _read(note: bytes) -> dict[str, object]:
    try:
        found = orjson.loads(note)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
