"""Divides the rows of pinned ranges between archives below one URL: by stream, by the value of a column, and failed
records apart.

Each archive has a prefix of its own, and all promises hold for each: its objects are named by the ranges of its own
rows. The rows of a pinned range are always divided in the same way, because the columns are computed from the records.
So any number of attempts result in the same objects.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.archive.archive import Archive, WriteReport
from leasehold.archive.columns import STREAM
from leasehold.archive.division import Division
from leasehold.archive.raw_objects import HAS_LINE_BREAK, has_line_break
from leasehold.archive.rows import PinnedRange
from leasehold.archive.settings import LINES, ArchiveSettings
from leasehold.core.exactly_once.object_keys import SEGMENT_CHARACTERS_MAX
from leasehold.core.stream_lists import stream_name
from leasehold.errors import ConfigError

# A value of a column becomes part of a name. An underscore and two digits replace every other byte.
_OTHERS: Final = re.compile(rb"[^A-Za-z0-9.-]")
NULL: Final = "_null"
# The column with the reason, if the rows have no column of errors of their own.
ERROR: Final = "error"
_VALUE_CHARACTERS_MAX: Final = 100
# A longer value is cut here, and its hash follows.
_CUT_CHARACTERS: Final = 20
_HASH_CHARACTERS: Final = 32
# Archives that stay open. One that is opened again lists what it contains.
ARCHIVES_MAX: Final = 1_000


class RangeWriter(Protocol):
    """Writes pinned ranges: one archive, or several."""

    async def write(self, ranges: Iterable[PinnedRange]) -> WriteReport:
        """Write pinned ranges, one after the other."""
        ...


def open_writer(settings: ArchiveSettings, open_archive: Callable[[ArchiveSettings], Archive]) -> RangeWriter:
    """The archive of the settings, or one that divides its rows. Several streams have an archive each."""
    return StreamArchives(settings, open_archive)


def _open_archive(
    settings: ArchiveSettings, open_archive: Callable[[ArchiveSettings], Archive]
) -> RangeWriter:
    if settings.partition_column is None and not settings.error_prefix:
        return open_archive(settings)
    return RoutedArchive(settings, open_archive)


def settings_of_stream(settings: ArchiveSettings, stream: str) -> ArchiveSettings:
    """The settings of the archive of one of several streams: below the prefix, in a folder with its name."""
    if settings.partition_column == STREAM:
        raise ConfigError(
            f"partition_column={STREAM!r} with a query of several streams: each of them has an archive of its own "
            f"below <prefix>/{STREAM}=<name> already; remove partitionColumn"
        )
    folder = f"{STREAM}={_shorten(stream_name(stream), SEGMENT_CHARACTERS_MAX - len(f'{STREAM}='))}"
    return replace(
        settings,
        prefix=f"{settings.prefix}/{folder}" if settings.prefix else folder,
        error_prefix=f"{settings.error_prefix}/{folder}" if settings.error_prefix else "",
    )


def undivided(settings: ArchiveSettings) -> ArchiveSettings:
    """The settings of an archive that does not divide its rows."""
    return replace(settings, partition_column=None, error_column=None, error_prefix="")


class StreamArchives(RangeWriter):
    """Writes the ranges of one stream to the archive of the settings, and those of several streams to one for each.

    Shards of two streams have the same ids, so in one archive the records of one would count as those of the other.
    """

    def __init__(self, settings: ArchiveSettings, open_archive: Callable[[ArchiveSettings], Archive]) -> None:
        self._settings = settings
        self._open_first = open_archive
        self._first: Archive | None = None  # its store is that of all archives
        # Opened at once: a store that cannot be opened is reported before the first range.
        self._writers: dict[str | None, RangeWriter] = {None: _open_archive(settings, self._open)}
        self._place: Archive | None = None  # below which the archives of several streams are

    async def write(self, ranges: Iterable[PinnedRange]) -> WriteReport:
        """Write pinned ranges, one after the other. Ranges of one stream that follow each other share a listing."""
        total = WriteReport()
        for stream, some in groupby(ranges, lambda each: each.stream):
            if stream is not None:
                self._place = self._place or self._open(undivided(self._settings))
                await self._place.note_division(Division(streams=True))
            total += await self._writer(stream).write(some)
        return total

    def _writer(self, stream: str | None) -> RangeWriter:
        if stream is not None and stream not in self._writers:
            self._writers[stream] = _open_archive(settings_of_stream(self._settings, stream), self._open)
        return self._writers[stream]

    def _open(self, settings: ArchiveSettings) -> Archive:
        archive = self._open_first(settings) if self._first is None else self._first.beside(settings)
        self._first = archive
        return archive


class RoutedArchive(RangeWriter):
    """Writes each row to the archive to which it belongs. It caches archives, so create it once."""

    def __init__(
        self,
        settings: ArchiveSettings,
        open_archive: Callable[[ArchiveSettings], Archive],
        *,
        archives_max: int = ARCHIVES_MAX,
    ) -> None:
        self._settings = undivided(settings)
        # A raw object has neither the position of a failed record nor the reason. JSON lines have both.
        self._errors = replace(self._settings, format="jsonl") if settings.is_raw else self._settings
        self._division = settings
        self._archives_max = archives_max
        self._root = open_archive(self._settings)  # its store is that of all archives
        self._archives: OrderedDict[str, Archive] = OrderedDict()  # the one that was used last is at the end

    async def write(self, ranges: Iterable[PinnedRange]) -> WriteReport:
        """Write pinned ranges, one after the other. The next one begins when all rows of the one before are stored."""
        total, division = WriteReport(), Division.of(self._division)
        for each in ranges:
            await self._root.note_division(division)
            for prefix, rows in divide_rows(each.table, self._division):
                part = PinnedRange(each.shard, each.lease_session, rows, each.stream)
                archive = self._archive(prefix)
                await archive.note_division(division)
                total += await archive.write([part])
        return total

    def _archive(self, prefix: str) -> Archive:
        if prefix not in self._archives:
            chosen = self._errors if prefix == self._division.error_prefix else self._settings
            self._archives[prefix] = self._root.beside(replace(chosen, prefix=prefix))
        self._archives.move_to_end(prefix)
        if len(self._archives) > self._archives_max:
            self._archives.popitem(last=False)
        return self._archives[prefix]


def divide_rows(table: Any, settings: ArchiveSettings) -> Iterator[tuple[str, Any]]:
    """The prefix of each archive, and its rows in their order."""
    for name in (settings.partition_column, settings.error_column):
        if name is not None and name not in table.column_names:
            raise ConfigError(f"the rows have no column {name!r}, by which the archive divides them")
    if settings.error_prefix:
        table, failed = mark_failed(table, settings)
        if pc.any(failed).as_py():
            yield settings.error_prefix, table.filter(failed)
            table = table.filter(pc.invert(failed))
    if settings.partition_column is None:
        if table.num_rows:
            yield settings.prefix, table
        return
    column = settings.partition_column
    room = min(_VALUE_CHARACTERS_MAX, SEGMENT_CHARACTERS_MAX - len(f"{column}="))
    texts = [_folder_value(value, room) for value in table[column].to_pylist()]
    for text in sorted(set(texts)):
        prefix = f"{settings.prefix}/" if settings.prefix else ""
        rows = table.filter([each == text for each in texts])
        yield f"{prefix}{column}={text}", rows


def mark_failed(table: Any, settings: ArchiveSettings) -> tuple[Any, Any]:
    """The rows, and which of them have failed: by the column of errors, or because the format cannot hold them."""
    column = settings.error_column
    if settings.format != LINES:
        return table, pc.is_valid(table[column])
    broken = has_line_break(table)
    if column is None:
        return table.append_column(
            ERROR, pc.if_else(broken, HAS_LINE_BREAK, pa.scalar(None, pa.string()))
        ), broken
    failed = pc.or_(pc.is_valid(table[column]), broken)
    if pa.types.is_string(table.schema.field(column).type):
        reasons = pc.if_else(broken, HAS_LINE_BREAK, pa.scalar(None, pa.string()))
        place = table.column_names.index(column)
        table = table.set_column(place, column, pc.coalesce(table[column], reasons))
    return table, failed


def _folder_value(value: object, characters_max: int = _VALUE_CHARACTERS_MAX) -> str:
    """The text of a value in a name. Different values have different texts.

    >>> _folder_value("eu-west 1"), _folder_value("a/b"), _folder_value(7), _folder_value(None)
    ('eu-west_201', 'a_2Fb', '7', '_null')
    """
    if value is None:
        return NULL
    text = _OTHERS.sub(lambda each: b"_%02X" % each[0][0], str(value).encode()).decode()
    return _shorten(text, characters_max)  # no value that fits has `_s` in its text


def _shorten(text: str, characters_max: int) -> str:
    """The text, or its beginning and its hash if it is too long for a name.

    The name of a stream may look like the shortened name of another. Then the marker of the archive names the other,
    and the range is refused.
    """
    if len(text) <= characters_max:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]
    return f"{text[:_CUT_CHARACTERS]}_sha256-{digest}"
