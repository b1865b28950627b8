"""`leasehold archive`: lists an archive, or verifies that it is complete. `archive_compact` adds `compact`, and
`archive_read` adds `read`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import Progress

from leasehold.archive.division import require_undivided
from leasehold.cli.archive_compact import compact
from leasehold.cli.archive_read import read
from leasehold.cli.archive_store import archive_options, no_archive, open_store
from leasehold.cli.connections import Connection, optional_connection_options
from leasehold.cli.extras import needs_extra
from leasehold.cli.leases import belongs_to_stream
from leasehold.cli.output import format_count, print_json, print_line, print_table
from leasehold.core.exactly_once.compaction_plan import ArchivedObject
from leasehold.core.exactly_once.object_keys import minute_path
from leasehold.core.model import Shard, ShardId
from leasehold.core.position import Position
from leasehold.errors import NotFoundError
from leasehold.ports import ObjectStore, Stream

if TYPE_CHECKING:
    from leasehold.archive.verification import ArchiveContents, Problem, ShardReport


SHARDS_NAMED_MAX: Final = 3


@click.group()
def archive() -> None:
    """List, read, verify or compact an archive."""


archive.add_command(compact)
archive.add_command(read)


@archive.command("list")
@archive_options
@optional_connection_options
def list_(*, connection: Connection, url: str, prefix: str, as_json: bool) -> None:
    """List the contents of the archive at URL, from the names of its objects.

    URL is s3://bucket/prefix, gs://bucket/prefix, az://account/container/prefix or a folder.
    """
    verification = _import_verification()
    store = open_store(url, connection)
    contents: ArchiveContents = asyncio.run(verification.list_archive(store, prefix))
    unrecognized = contents.others + len(contents.strays)
    if as_json:
        shards = [_listing_to_json(*each) for each in contents.shards.items()]
        print_json({"shards": shards, "unrecognized_objects": unrecognized})
        return
    if not contents.shards:
        print_line(_with_unrecognized(unrecognized, no_archive(url, prefix)))
        return
    print_table(
        ("shard", "objects", "bytes", "from", "to"), [_listing_row(*each) for each in contents.shards.items()]
    )
    print_line("")
    print_line(
        _with_unrecognized(unrecognized, format_count(sum(map(len, contents.shards.values())), "object"))
    )


@archive.command()
@archive_options
@click.option("--stream", metavar="NAME", help="Find gaps: compare the archive with this stream.")
@optional_connection_options
@click.pass_context
def verify(
    context: click.Context,
    *,
    connection: Connection,
    url: str,
    prefix: str,
    as_json: bool,
    stream: str | None,
) -> None:
    """Verify that the archive at URL contains every record once.

    The command reads every object and reports overlaps, duplicates, damage and stray files. With --stream it also
    reports gaps: records that the stream retains and the archive does not contain, up to the last archived record or,
    if the leases are given, up to their checkpoints. It exits with 1 if it finds a problem.
    """
    if connection.has_lease_option and stream is None:
        raise click.UsageError("Leases are used only to find gaps: add --stream NAME, or leave them out.")
    store = open_store(url, connection)
    result = asyncio.run(_verify(store, prefix, connection, stream))
    # With leases, an archive without objects can be complete: no checkpoint has passed a record.
    if not sum(result.objects.values()) and not result.problems and not (stream and connection.has_leases):
        raise NotFoundError(no_archive(url, prefix))
    if as_json:
        print_json(_result_to_json(result))
    else:
        _print_result(result, with_gaps=stream is not None)
    if result.problems:
        context.exit(1)


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of a verification."""

    shards: Sequence[ShardReport]
    problems: Sequence[Problem]
    objects: Mapping[ShardId, int]
    unrecognized_objects: int
    unchecked: Sequence[ShardId] = ()  # shards of the stream with neither an object nor a lease
    leases: str | None = None  # whose checkpoints were compared with; None: the last archived records


async def _verify(
    store: ObjectStore, prefix: str, connection: Connection, stream_name: str | None
) -> _Result:
    verification = _import_verification()
    contents: ArchiveContents = await verification.list_archive(store, prefix)
    of_stream = await verification.stored_stream(store, prefix)
    if stream_name is not None:
        verification.require_same_stream(of_stream, stream_name)
        await require_undivided(store, prefix, purpose="with --stream, which expects all records")
    reference = await _open_reference(connection, stream_name)
    names = sorted({*contents.shards, *reference.shards})
    shards: list[ShardReport] = []
    problems: list[Problem] = [*contents.strays]
    try:
        with _show_progress(sum(map(len, contents.shards.values()))) as advance:
            for name in names:
                objects = contents.shards.get(name, ())
                shard = reference.shards.get(name)
                report = await verification.verify_shard(
                    store,
                    name,
                    objects,
                    advance,
                    keep_positions=shard is not None,
                    list_again=partial(_list_shard, store, prefix, name),
                    stream=of_stream,
                )
                gap = await reference.find_gap(shard, report) if shard else None
                shards.append(report)
                problems += [*report.problems, *([gap] if gap else [])]
    finally:
        if reference.stream is not None:
            await reference.stream.close()
    return _Result(
        shards,
        problems,
        {name: len(contents.shards.get(name, ())) for name in names},
        contents.others,
        [name for name in names if name not in contents.shards and name not in reference.checkpoints],
        connection.leases_text if reference.stream is not None and connection.has_leases else None,
    )


async def _list_shard(store: ObjectStore, prefix: str, shard: ShardId) -> Sequence[ArchivedObject]:
    contents: ArchiveContents = await _import_verification().list_archive(store, prefix)
    return contents.shards.get(shard, ())


@dataclass(frozen=True, slots=True)
class _Reference:
    """The stream to compare the archive with, and the checkpoints of its leases if they are known."""

    stream: Stream | None
    shards: Mapping[ShardId, Shard]
    checkpoints: Mapping[ShardId, Position]

    async def find_gap(self, shard: Shard, report: ShardReport) -> Problem | None:
        from leasehold.adapters.system_clock import SystemClock  # noqa: PLC0415 - only with a stream

        assert self.stream is not None
        gap: Problem | None = await _import_verification().find_gap(
            self.stream, shard, report, self.checkpoints.get(shard.id), clock=SystemClock()
        )
        return gap


async def _open_reference(connection: Connection, stream_name: str | None) -> _Reference:
    if stream_name is None:
        return _Reference(None, {}, {})
    checkpoints: Mapping[ShardId, Position] = {}
    if connection.has_leases:
        async with connection.lease_table() as table:
            leases = (await table.list()).leases
        checkpoints = {
            lease.shard_id: lease.checkpoint for lease in leases if belongs_to_stream(lease, stream_name)
        }
    stream = connection.stream_opener(threads=2)(stream_name)
    return _Reference(stream, {shard.id: shard for shard in await stream.list_shards()}, checkpoints)


def _import_verification() -> Any:
    with needs_extra("archive"):
        from leasehold.archive import verification  # noqa: PLC0415 - pyarrow is an extra
    return verification


@contextmanager
def _show_progress(objects: int) -> Iterator[Any]:
    """Show a progress bar on the terminal, if there is one."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading objects", total=objects)
        yield lambda done: bar.advance(task, done)


def _print_result(result: _Result, *, with_gaps: bool) -> None:
    if result.shards:
        print_table(
            ("shard", "objects", "records", "problems"), [_row(each, result) for each in result.shards]
        )
        print_line("")
    for problem in result.problems:
        print_line(f"{problem.kind.value}: {problem.shard}: {problem.location}: {problem.detail}")
    rows = sum(each.rows for each in result.shards)
    counts = Counter(each.kind for each in result.problems)
    summary = ", ".join(
        f"{kind.value}s={counts[kind]}"
        for kind in _import_verification().ProblemKind
        if with_gaps or kind.value != "gap"
    )
    print_line(_with_unrecognized(result.unrecognized_objects, f"{format_count(rows, 'record')}: {summary}"))
    if not with_gaps:
        print_line("gaps: unknown; add --stream NAME to compare with the stream")
        return
    print_line(_compared_text(result.leases))
    if result.unchecked:
        print_line(_unchecked_text(result.unchecked))


def _compared_text(leases: str | None) -> str:
    if leases is None:
        return (
            "gaps: compared with the stream up to the last archived record of each shard; give the leases, such as "
            "--application NAME, to compare up to their checkpoints"
        )
    return f"gaps: compared with the stream up to the checkpoints of {leases}"


def _unchecked_text(shards: Sequence[ShardId]) -> str:
    named = ", ".join([*shards[:SHARDS_NAMED_MAX], *(["..."] if len(shards) > SHARDS_NAMED_MAX else [])])
    return (
        f"gaps: unknown for {format_count(len(shards), 'shard')} of the stream without an object ({named}); give the "
        "leases, such as --application NAME, to expect all records up to their checkpoints"
    )


def _row(each: ShardReport, result: _Result) -> Sequence[str]:
    problems = sum(problem.shard == each.shard for problem in result.problems)
    return each.shard, str(result.objects[each.shard]), str(each.rows), str(problems)


def _with_unrecognized(objects: int, text: str) -> str:
    return f"{text}; {format_count(objects, 'unrecognized object')}" if objects else text


def _result_to_json(result: _Result) -> Mapping[str, Any]:
    return {
        "shards": [
            {
                "shard": each.shard,
                "objects": result.objects[each.shard],
                "records": each.rows,
                "first": str(each.first) if each.first else None,
                "last": str(each.last) if each.last else None,
            }
            for each in result.shards
        ],
        "problems": [
            {"kind": each.kind.value, "shard": each.shard, "location": each.location, "detail": each.detail}
            for each in result.problems
        ],
        "unrecognized_objects": result.unrecognized_objects,
        "unchecked_shards": list(result.unchecked),
        "compared_with_leases_of": result.leases,
    }


def _listing_row(shard: ShardId, objects: Sequence[ArchivedObject]) -> Sequence[str]:
    size = sum(each.size_bytes for each in objects)
    return shard, str(len(objects)), f"{size:,}", *_first_and_last_minute(objects)


def _first_and_last_minute(objects: Sequence[ArchivedObject]) -> tuple[str, str]:
    first = min(each.key.first_minute for each in objects)
    return minute_path(first), minute_path(max(each.key.last_minute for each in objects))


def _listing_to_json(shard: ShardId, objects: Sequence[ArchivedObject]) -> Mapping[str, Any]:
    first, last = _first_and_last_minute(objects)
    return {
        "shard": shard,
        "objects": len(objects),
        "bytes": sum(each.size_bytes for each in objects),
        "from": first,
        "to": last,
    }
