"""Opens a stream together with the archive of its older records."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from leasehold.config.connection import ConnectionSettings
from leasehold.ports import Stream

# For each shard that is read in the archive. A process may read many.
_OBJECTS_AHEAD: Final = 2
_BYTES_AHEAD: Final = 8 * 1024 * 1024


def with_archive(stream: Stream, name: str, connection: ConnectionSettings) -> Stream:
    """The stream with the archive of the settings in front of it; the stream itself if they name none."""
    if connection.archive is None:
        return stream
    # pyarrow is an extra, and takes a while to import.
    from leasehold.archive.archive_index import ArchiveIndex  # noqa: PLC0415
    from leasehold.archive.archived_stream import ArchivedStream  # noqa: PLC0415
    from leasehold.archive.history_pages import HistoryPages  # noqa: PLC0415
    from leasehold.archive.reading import open_archive  # noqa: PLC0415
    from leasehold.archive.settings import ArchiveSettings  # noqa: PLC0415

    settings = ArchiveSettings(
        url=connection.archive,
        prefix=connection.archive_prefix,
        region=connection.region,
        profile=connection.profile,
        role_arn=connection.role_arn,
        role_external_id=connection.role_external_id,
        s3_endpoint=connection.s3_endpoint,
    )
    store = replace(open_archive(settings), objects_ahead=_OBJECTS_AHEAD, bytes_ahead=_BYTES_AHEAD)
    index = ArchiveIndex(store, name)
    return ArchivedStream(stream, index, HistoryPages(index), store.clock)
