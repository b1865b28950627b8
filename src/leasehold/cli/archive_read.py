"""`leasehold archive read`: prints the records of an archive."""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from leasehold.cli.archive_store import location_options, no_archive, open_store
from leasehold.cli.connections import Connection, s3_connection_options
from leasehold.cli.extras import needs_extra
from leasehold.cli.option_values import refuse_values
from leasehold.errors import ConfigError, NotFoundError

DATA: Final = "data"
# The column of payloads that are no text. The second one if the records have the first.
_OTHER_NAMES: Final = ("dataBase64", "_dataBase64")
# In UTF-8. JSON allows these control characters, but a terminal may act on them.
_CONTROL: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]")


@click.command()
@location_options
@click.option(
    "--start", metavar="TIME", help="Only records that arrived at this time or later: 2026-11-15T12:00:00Z."
)
@click.option("--end", metavar="TIME", help="Only records that arrived before this time.")
@click.option("--shard", "shards", metavar="ID", multiple=True, help="Only this shard; may be repeated.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after this number of records.")
@click.option("--text", "as_text", is_flag=True, help="Print payloads as text, not as base64.")
@click.option("--raw", is_flag=True, help="Print only the payloads, each with a line break after it.")
@s3_connection_options
def read(
    *,
    connection: Connection,
    url: str,
    prefix: str,
    limit: int | None,
    as_text: bool,
    raw: bool,
    **chosen: Any,
) -> None:
    """Print the records of the archive at URL, as JSON lines.

    Shard after shard, and in order within each shard. Payloads are base64. With --text they are text; a payload that is
    not UTF-8 is then in dataBase64 (_dataBase64 if the records have a column of that name), and data is null.
    """
    if as_text and raw:
        raise click.UsageError("--text and --raw exclude each other: --raw prints payloads as they are.")
    with needs_extra("archive"):
        from leasehold.adapters.system_clock import SystemClock  # noqa: PLC0415 - with pyarrow, an extra
        from leasehold.archive import reading  # noqa: PLC0415
        from leasehold.archive.archive import MARKER  # noqa: PLC0415
        from leasehold.archive.formats import to_json_lines  # noqa: PLC0415
        from leasehold.archive.raw_objects import to_binary  # noqa: PLC0415
        from leasehold.archive.shard_rows import ArchiveStore  # noqa: PLC0415

    with refuse_values(of_settings=True):
        span = reading.time_span(chosen["start"], chosen["end"])
    # The random numbers only spread the pauses between attempts.
    store = ArchiveStore(open_store(url, connection), prefix, SystemClock(), random.Random())  # noqa: S311
    batches = reading.read_store(store, span, chosen["shards"] or None, [DATA] if raw else None)
    encode: Callable[[Any], bytes]
    if raw:
        encode = lambda batch: _to_payloads(_with_bytes(batch, to_binary))  # noqa: E731
    elif as_text:
        encode = lambda batch: _escape(to_json_lines(_with_text(_with_bytes(batch, to_binary))))  # noqa: E731
    else:
        encode = lambda batch: _escape(to_json_lines(batch))  # noqa: E731
    rows = _print(_limited(batches, limit), encode)
    marker = f"{prefix}/{MARKER}" if prefix else MARKER
    if not rows and asyncio.run(store.objects.size(marker)) is None:
        raise NotFoundError(no_archive(url, prefix))


def _limited(batches: Iterator[Any], limit: int | None) -> Iterator[Any]:
    left = limit
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return


def _print(batches: Iterator[Any], encode: Callable[[Any], bytes]) -> int:
    """Print batches as they come. Returns the number of rows. Ends if nobody reads the output any more."""
    output, rows = sys.stdout.buffer, 0
    try:
        for batch in batches:
            output.write(encode(batch))
            output.flush()
            rows += batch.num_rows
    except BrokenPipeError:
        # Python would report the same error again when it flushes the output at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        rows += 1
    return rows


def _to_payloads(batch: Any) -> bytes:
    if DATA not in batch.schema.names:
        raise ConfigError(
            f"the records of this archive have no column {DATA!r}: read them without --raw, as JSON lines"
        )
    return b"".join((each or b"") + b"\n" for each in batch.column(DATA).to_pylist())


def _escape(rows: bytes) -> bytes:
    return _CONTROL.sub(lambda found: b"\\u%04x" % ord(found[0].decode()), rows)


def _with_bytes(batch: Any, to_binary: Callable[[Any], Any]) -> Any:
    """The batch with bytes in the column of payloads. A program may have stored it as text, or dropped it."""
    if DATA not in batch.schema.names:
        return batch
    return batch.set_column(batch.schema.names.index(DATA), DATA, to_binary(batch.column(DATA)))


def _with_text(batch: Any) -> Any:
    """The batch with texts in the place of payloads. A payload that is no text is in another column."""
    if DATA not in batch.schema.names:
        return batch
    payloads = batch.column(DATA).to_pylist()
    texts = [_to_text(each) for each in payloads]
    made = batch.set_column(batch.schema.names.index(DATA), DATA, texts)
    if None not in texts:
        return made
    others = [each if text is None else None for each, text in zip(payloads, texts, strict=True)]
    return made.append_column(next(name for name in _OTHER_NAMES if name not in made.schema.names), others)


def _to_text(payload: bytes | None) -> str | None:
    try:
        return None if payload is None else payload.decode()
    except UnicodeDecodeError:
        return None
