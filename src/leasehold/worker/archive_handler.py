"""A ready handler that writes batches to the archive: it pins each batch, writes it, and then checkpoints it.

The pin is the KCL's prepared checkpoint. The next owner of the shard gets exactly the pinned batch first, so a crash, a
frozen process or a move of the shard never changes the bounds of a range.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, Final, Unpack

import pyarrow as pa

from leasehold.archive.archive import Archive
from leasehold.archive.columns import HANDLER_COLUMNS, arrow_schema, record_batches
from leasehold.archive.routing import RangeWriter, open_writer
from leasehold.archive.rows import PinnedRange
from leasehold.archive.settings import ArchiveSettings
from leasehold.core.model import ShardId
from leasehold.core.record import UserRecord
from leasehold.errors import ConfigError
from leasehold.worker.batch import Batch
from leasehold.worker.consumer import Consumer
from leasehold.worker.options import HandlingOptions

# Larger batches than usual, because each becomes an object; still far smaller than the read-ahead buffer.
DEFAULTS: Final[HandlingOptions] = {"max_records": 50_000, "max_bytes": 16 * 1024 * 1024, "max_wait": "10s"}
# A pinned range is written whole, and no record may be left out: retry until the store has it.
ALWAYS: Final[HandlingOptions] = {"bisect": False, "on_poison": "hold", "dead_letters": None}


def archive_batches(
    consumer: Consumer, settings: ArchiveSettings, **options: Unpack[HandlingOptions]
) -> None:
    """Make a consumer archive its stream. `options` are those of `consumer.batch`; each batch becomes a range.

    While the store cannot be reached, the shard waits. No record is skipped or dead-lettered.
    """
    if consumer.settings.identity.is_multi_stream:
        raise _one_stream_only()
    if settings.partition_column is not None or settings.error_column is not None:
        raise ConfigError(
            "partition_column and error_column name columns that Spark computes: a worker stores records as they are"
        )
    handling: Any = {**DEFAULTS, **options, **ALWAYS}
    consumer.batch(**handling)(archive_handler(lambda: open_writer(settings, Archive.open)))


def archive_handler(open_archive: Callable[[], RangeWriter]) -> Callable[[Batch], Awaitable[None]]:
    """Return the handler. It opens the archive with the first batch, on the event loop that runs the handler."""
    archive_once = cache(open_archive)
    streams: set[str] = set()

    async def archive(batch: Batch) -> None:
        streams.add(batch.stream)
        if len(streams) > 1:
            raise _one_stream_only()
        if not batch.columns:
            await batch.checkpoint()
            return
        pinned = await batch.prepare()
        await archive_once().write(
            [
                PinnedRange(
                    batch.shard, batch.session, to_archive_table(batch.columns, batch.stream, batch.shard)
                )
            ]
        )
        await pinned.commit()

    return archive


def _one_stream_only() -> ConfigError:
    # Object names contain the shard but not the stream, and the shards of two streams have the same ids.
    return ConfigError(
        "an archive holds one stream: make one consumer with stream= for each stream, and use a path of its own"
    )


def to_archive_table(records: Sequence[UserRecord], stream: str, shard: ShardId) -> Any:
    """Convert records to the rows of an archive."""
    batches = record_batches(records, stream=stream, shard=shard, columns=HANDLER_COLUMNS, session=0)
    return pa.Table.from_batches(batches, schema=arrow_schema(HANDLER_COLUMNS))
