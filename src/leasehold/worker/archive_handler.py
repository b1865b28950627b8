"""The archive as the handler of a plain worker: each batch is pinned, written, and then checkpointed.

The pin is the KCL's prepared checkpoint. A worker that finds one redoes exactly that batch first, so a crash, a frozen
process or a move of the shard never cuts a range a second time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final, Unpack

import pyarrow as pa

from leasehold.archive.archive import Archive
from leasehold.archive.columns import ARCHIVE_COLUMNS, SLICE, arrow_schema, record_batches
from leasehold.archive.rows import PinnedRange
from leasehold.archive.settings import ArchiveSettings
from leasehold.core.model import ShardId
from leasehold.core.record import UserRecord
from leasehold.errors import ConfigError
from leasehold.worker.batch import Batch
from leasehold.worker.consumer import Consumer
from leasehold.worker.options import HandlingOptions

_COLUMNS: Final = tuple(name for name in ARCHIVE_COLUMNS if name != SLICE)

# Larger objects than a handler's batches usually are; still well below what is read ahead.
DEFAULTS: Final[HandlingOptions] = {"max_records": 50_000, "max_bytes": 16 * 1024 * 1024, "max_wait": "10s"}
# A part of a pinned range must never be written alone, and nothing may be left out: try until the store has it.
ALWAYS: Final[HandlingOptions] = {"bisect": False, "on_poison": "hold", "dead_letters": None}


def archive_batches(
    consumer: Consumer, settings: ArchiveSettings, **options: Unpack[HandlingOptions]
) -> None:
    """Let a consumer archive its stream. `options` are those of `consumer.batch`; batches are as large as objects.

    A store that cannot be reached makes the shard wait; no record is skipped or put aside.
    """
    if consumer.settings.identity.streams:
        raise _one_stream_only()
    handling: Any = {**DEFAULTS, **options, **ALWAYS}
    consumer.batch(**handling)(archive_handler(lambda: Archive.open(settings)))


def archive_handler(open_archive: Callable[[], Archive]) -> Callable[[Batch], Awaitable[None]]:
    """The handler by itself. The archive is opened with the first batch, on the loop on which it is then used."""
    opened = cache(open_archive)
    streams: set[str] = set()

    async def archive(batch: Batch) -> None:
        streams.add(batch.stream)
        if len(streams) > 1:
            raise _one_stream_only()
        if not batch.records:
            await batch.checkpoint()
            return
        pinned = await batch.prepare()
        await opened().write(
            [
                PinnedRange(
                    batch.shard, batch.session, to_archive_table(batch.records, batch.stream, batch.shard)
                )
            ]
        )
        await pinned.commit()

    return archive


def _one_stream_only() -> ConfigError:
    """Objects are named by shard, and shards of two streams have the same names."""
    return ConfigError(
        "an archive holds one stream: make a consumer with stream= for each, with a path of its own"
    )


def to_archive_table(records: tuple[UserRecord, ...], stream: str, shard: ShardId) -> Any:
    """Records as the rows of an archive."""
    batches = record_batches(records, stream=stream, shard=shard, columns=_COLUMNS, session=0)
    return pa.Table.from_batches(batches, schema=arrow_schema(_COLUMNS))
