"""`leasehold archive`: what an archive holds, and whether it is whole. Reads only."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import Progress

from leasehold.cli.connections import Connection, check_endpoint, optional_connection_options
from leasehold.cli.leases import belongs_to_stream
from leasehold.cli.output import format_count, print_json, print_line, print_table
from leasehold.core.exactly_once.object_keys import minute_path, validate_prefix
from leasehold.core.model import Shard, ShardId
from leasehold.core.position import Position
from leasehold.errors import ConfigError
from leasehold.ports import ObjectStore, Stream

if TYPE_CHECKING:
    from leasehold.archive.verification import ArchiveContents, ArchivedObject, Problem, ShardReport


@click.group()
def archive() -> None:
    """Look at an archive, or check it."""


def _place_options(command: Any) -> Any:
    for decorate in (
        click.argument("url"),
        click.option("--prefix", default="", metavar="PREFIX", help="Below the URL, if the archive has one."),
        click.option("--s3-endpoint-url", metavar="URL", help="Endpoint for S3."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    ):
        command = decorate(command)
    return command


@archive.command("list")
@_place_options
@optional_connection_options
def list_(
    *, connection: Connection, url: str, prefix: str, s3_endpoint_url: str | None, as_json: bool
) -> None:
    """Show what the archive at URL holds, by the names of its objects.

    URL is s3://bucket/prefix, gs://bucket/prefix, az://account/container/prefix or a folder.
    """
    verifying = _verifying()
    store = _open_store(url, s3_endpoint_url, connection)
    listed: ArchiveContents = asyncio.run(verifying.list_archive(store, validate_prefix(prefix)))
    if as_json:
        print_json(
            {"shards": [_listed_to_json(*each) for each in listed.shards.items()], "others": listed.others}
        )
        return
    print_table(
        ("shard", "objects", "bytes", "from", "to"), [_listed_row(*each) for each in listed.shards.items()]
    )
    print_line("")
    print_line(_others(listed.others, format_count(sum(map(len, listed.shards.values())), "object")))


@archive.command()
@_place_options
@click.option("--stream", metavar="NAME", help="Look for gaps: compare with what this stream still holds.")
@optional_connection_options
@click.pass_context
def verify(
    context: click.Context,
    *,
    connection: Connection,
    url: str,
    prefix: str,
    s3_endpoint_url: str | None,
    as_json: bool,
    stream: str | None,
) -> None:
    """Check that every record is in the archive at URL once.

    Reads every object, and reports overlaps, duplicates and damage. With --stream it looks for gaps, too: records that
    the stream still holds and the archive does not, up to the last one archived or, if the leases are named, up to what
    they call done. Exits with 1 if something is wrong.
    """
    if connection.has_leases and stream is None:
        raise click.UsageError("Leases help to find gaps: add --stream NAME, or leave them out.")
    store = _open_store(url, s3_endpoint_url, connection)
    verdict = asyncio.run(_verify(store, validate_prefix(prefix), connection, stream))
    if as_json:
        print_json(_verdict_to_json(verdict))
    else:
        _print_verdict(verdict, gaps_known=stream is not None)
    if verdict.problems:
        context.exit(1)


@dataclass(frozen=True, slots=True)
class _Verdict:
    shards: Sequence[ShardReport]
    problems: Sequence[Problem]
    objects: Mapping[ShardId, int]
    others: int


async def _verify(
    store: ObjectStore, prefix: str, connection: Connection, stream_name: str | None
) -> _Verdict:
    verifying = _verifying()
    listed: ArchiveContents = await verifying.list_archive(store, prefix)
    reference = await _reference(connection, stream_name)
    names = sorted({*listed.shards, *reference.shards})
    shards: list[ShardReport] = []
    problems: list[Problem] = []
    try:
        with _progress(sum(map(len, listed.shards.values()))) as advance:
            for name in names:
                objects = listed.shards.get(name, ())
                shard = reference.shards.get(name)
                verdict = await verifying.verify_shard(
                    store, name, objects, advance, keep_positions=shard is not None
                )
                gap = await reference.gap(shard, verdict) if shard else None
                shards.append(verdict)
                problems += [*verdict.problems, *([gap] if gap else [])]
    finally:
        if reference.stream is not None:
            await reference.stream.close()
    return _Verdict(
        shards, problems, {name: len(listed.shards.get(name, ())) for name in names}, listed.others
    )


@dataclass(frozen=True, slots=True)
class _Reference:
    """What the archive is compared with: nothing, or a stream, perhaps with the leases of whoever archives it."""

    stream: Stream | None
    shards: Mapping[ShardId, Shard]
    done: Mapping[ShardId, Position]

    async def gap(self, shard: Shard, verdict: ShardReport) -> Problem | None:
        from leasehold.adapters.system_clock import SystemClock  # noqa: PLC0415 - only with a stream

        assert self.stream is not None
        found: Problem | None = await _verifying().find_gap(
            self.stream, shard, verdict, self.done.get(shard.id), clock=SystemClock()
        )
        return found


async def _reference(connection: Connection, stream_name: str | None) -> _Reference:
    if stream_name is None:
        return _Reference(None, {}, {})
    from leasehold.adapters.aws.kinesis_stream import KinesisStream  # noqa: PLC0415 - boto3 is slow

    done: Mapping[ShardId, Position] = {}
    if connection.has_leases:
        async with connection.lease_table() as table:
            leases = (await table.list()).leases
        done = {lease.shard_id: lease.checkpoint for lease in leases if belongs_to_stream(lease, stream_name)}
    stream = KinesisStream(connection.kinesis(threads=2), stream_name)
    return _Reference(stream, {shard.id: shard for shard in await stream.list_shards()}, done)


def _open_store(url: str, s3_endpoint_url: str | None, connection: Connection) -> ObjectStore:
    from leasehold.adapters.aws.clients import AwsAccess  # noqa: PLC0415 - boto3 is slow
    from leasehold.adapters.obstore_objects import open_object_store  # noqa: PLC0415

    check_endpoint(s3_endpoint_url, plain_http=connection.plain_http)
    access = AwsAccess(
        region=connection.region,
        profile=connection.profile,
        endpoint_url=s3_endpoint_url or connection.endpoint_url,
    )
    return open_object_store(url, access, setting="URL", extra="archive", make_folder=False)


def _verifying() -> Any:
    try:
        from leasehold.archive import verification as verifying  # noqa: PLC0415 - pyarrow is an extra
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'leasehold[archive]'") from error
    return verifying


@contextmanager
def _progress(objects: int) -> Iterator[Any]:
    """A bar on the terminal, if there is one."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading objects", total=objects)
        yield lambda done: bar.advance(task, done)


def _print_verdict(verdict: _Verdict, *, gaps_known: bool) -> None:
    if verdict.shards:
        print_table(
            ("shard", "objects", "records", "problems"), [_row(each, verdict) for each in verdict.shards]
        )
        print_line("")
    for problem in verdict.problems:
        print_line(f"{problem.kind.value}: {problem.shard}: {problem.location}: {problem.detail}")
    rows = sum(each.rows for each in verdict.shards)
    wrong = Counter(each.kind for each in verdict.problems)
    told = ", ".join(
        f"{kind.value}s={wrong[kind]}"
        for kind in _verifying().ProblemKind
        if gaps_known or kind.value != "gap"
    )
    print_line(_others(verdict.others, f"{format_count(rows, 'record')}: {told}"))
    if not gaps_known:
        print_line("gaps: unknown; add --stream NAME to compare with the stream")


def _row(each: ShardReport, verdict: _Verdict) -> Sequence[str]:
    wrong = sum(problem.shard == each.shard for problem in verdict.problems)
    return each.shard, str(verdict.objects[each.shard]), str(each.rows), str(wrong)


def _others(others: int, text: str) -> str:
    return f"{text}; {format_count(others, 'object')} of others" if others else text


def _verdict_to_json(verdict: _Verdict) -> Mapping[str, Any]:
    return {
        "shards": [
            {
                "shard": each.shard,
                "objects": verdict.objects[each.shard],
                "records": each.rows,
                "first": str(each.first) if each.first else None,
                "last": str(each.last) if each.last else None,
            }
            for each in verdict.shards
        ],
        "problems": [
            {"kind": each.kind.value, "shard": each.shard, "location": each.location, "detail": each.detail}
            for each in verdict.problems
        ],
        "others": verdict.others,
    }


def _listed_row(shard: ShardId, objects: Sequence[ArchivedObject]) -> Sequence[str]:
    minutes = [each.key.minute for each in objects]
    size = sum(each.size_bytes for each in objects)
    return shard, str(len(objects)), f"{size:,}", minute_path(min(minutes)), minute_path(max(minutes))


def _listed_to_json(shard: ShardId, objects: Sequence[ArchivedObject]) -> Mapping[str, Any]:
    minutes = [each.key.minute for each in objects]
    return {
        "shard": shard,
        "objects": len(objects),
        "bytes": sum(each.size_bytes for each in objects),
        "from": minute_path(min(minutes)),
        "to": minute_path(max(minutes)),
    }
