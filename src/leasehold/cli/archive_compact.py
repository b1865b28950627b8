"""`leasehold archive compact`: merges the small objects of an archive into large ones."""

from __future__ import annotations

import asyncio
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import Progress

from leasehold.cli.archive_store import archive_options, no_archive, open_store
from leasehold.cli.connections import Connection, optional_connection_options
from leasehold.cli.extras import needs_extra
from leasehold.cli.option_values import refuse_values
from leasehold.cli.output import format_count, print_json, print_line, progress_lines
from leasehold.config import values
from leasehold.errors import ConfigError, NotFoundError

if TYPE_CHECKING:
    from leasehold.archive.compaction import CompactionPlan, CompactionReport, CompactionSettings

LINE_EVERY_S: Final = 60.0
_SIZE: Final = re.compile(r"([0-9]+)\s*(?:(K|M|G)(?:i?B)?|B)?")
_UNITS: Final = {None: 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def _parse_size(_context: click.Context, _option: click.Parameter, text: str) -> int:
    """Parse a size.

    >>> _parse_size(None, None, "128MiB") // 1024**2
    128
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise click.BadParameter("expected a size such as 64MiB, 128MiB or 1GiB")
    return int(match[1]) * _UNITS[match[2]]


def _parse_duration_ms(_context: click.Context, _option: click.Parameter, text: str) -> int:
    try:
        return round(values.duration(text).total_seconds() * 1000)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@archive_options
@click.option(
    "--target-size",
    default="128MiB",
    show_default=True,
    callback=_parse_size,
    metavar="SIZE",
    help="Size of the large objects.",
)
@click.option(
    "--older-than",
    default="1d",
    show_default=True,
    callback=_parse_duration_ms,
    metavar="TIME",
    help="Compact only records that arrived, and objects that were stored, longer ago than this.",
)
@click.option(
    "--delete-after",
    default="1h",
    show_default=True,
    callback=_parse_duration_ms,
    metavar="TIME",
    help="Delete small objects this long after the large one was created, at least a minute.",
)
@click.option(
    "--compression",
    default="zstd",
    show_default=True,
    type=click.Choice(["zstd", "snappy", "gzip", "none"]),
    help="Compression of Parquet. Avro gets deflate for gzip, and zstd for snappy.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@optional_connection_options
def compact(
    *, connection: Connection, url: str, prefix: str, as_json: bool, dry_run: bool, **options: Any
) -> None:
    """Merge the small objects of the archive at URL into large ones.

    A large object replaces the small ones as soon as it exists: readers, verify and writers ignore small objects that
    lie within a large one, by their names. Small objects are deleted by a later run, after --delete-after. The
    archive may be written meanwhile. An interrupted run is continued by the next one.
    """
    compaction = _import_compaction()
    with refuse_values(of_settings=True):
        settings = compaction.CompactionSettings(
            prefix=prefix,
            target_bytes=options["target_size"],
            older_than_ms=options["older_than"],
            delete_after_ms=options["delete_after"],
            compression=options["compression"],
        )
    run = _Run(compaction, open_store(url, connection), settings)
    if not asyncio.run(run.has_archive()):
        raise NotFoundError(no_archive(url, prefix))
    if dry_run:
        plan = asyncio.run(run.plan())
        for sentence in plan.remarks:
            click.echo(sentence, err=True)
        _print(_plan_to_json(plan), _describe_plan(plan), as_json=as_json)
        return
    started_s = time.monotonic()
    report: CompactionReport = asyncio.run(run.compact())
    seconds = time.monotonic() - started_s
    for sentence in report.skipped:
        click.echo(sentence, err=True)
    _print(_report_to_json(report, seconds), _describe_report(report, seconds), as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the command. The modules of the archive are imported late."""

    compaction: Any
    store: Any
    settings: CompactionSettings

    def _compactor(self, clock: Any) -> Any:
        # The random numbers only spread the pauses between attempts.
        return self.compaction.Compactor(self.store, self.settings, clock=clock, rng=random.Random())  # noqa: S311

    async def has_archive(self) -> bool:
        from leasehold.adapters.system_clock import SystemClock  # noqa: PLC0415 - with the archive

        found: bool = await self._compactor(SystemClock()).has_archive()
        return found

    async def plan(self) -> CompactionPlan:
        from leasehold.adapters.system_clock import SystemClock  # noqa: PLC0415 - with the archive

        clock = SystemClock()
        plan: CompactionPlan = await self._compactor(clock).plan(store_time_ms=clock.wall_ms())
        return plan

    async def compact(self) -> CompactionReport:
        from leasehold.adapters.system_clock import SystemClock  # noqa: PLC0415 - with the archive
        from leasehold.archive.compaction_lock import CompactionLock  # noqa: PLC0415

        clock = SystemClock()
        lock = CompactionLock(self.store, self.settings.prefix, clock, owner=uuid.uuid4().hex)
        with _show_progress() as on_plan:
            report: CompactionReport = await self.compaction.compact(
                self._compactor(clock),
                lock,
                on_plan=on_plan,
                on_wait=lambda text: click.echo(text, err=True),
            )
        return report


def _import_compaction() -> Any:
    with needs_extra("archive"):
        from leasehold.archive import compaction  # noqa: PLC0415 - pyarrow is an extra
    return compaction


@contextmanager
def _show_progress() -> Iterator[Callable[[Any], Callable[[int], None]]]:
    """Show a progress bar on the terminal, or print a line a minute."""
    console = Console(stderr=True)
    done, total = 0, 0

    def describe() -> str:
        return f"compacted {done} of {total} objects"

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("compacting objects", total=None)

        def advance(objects: int) -> None:
            nonlocal done
            done += objects
            bar.advance(task, objects)

        def on_plan(plan: Any) -> Callable[[int], None]:
            nonlocal total
            total = sum(len(group.objects) for group in plan.groups) + len(plan.deletions)
            bar.update(task, total=total)
            return advance

        if console.is_terminal:
            yield on_plan
        else:
            with progress_lines(describe, LINE_EVERY_S):
                yield on_plan


def _print(as_json_value: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(as_json_value)
    else:
        print_line(text)


def _describe_plan(plan: CompactionPlan) -> str:
    objects = sum(len(group.objects) for group in plan.groups)
    size = sum(group.size_bytes for group in plan.groups)
    return (
        f"would merge {format_count(objects, 'object')} with {size:,} bytes into {len(plan.groups)}, and delete "
        f"{format_count(len(plan.deletions), 'replaced object')}; {plan.waiting} replaced ones are kept for now"
    )


def _plan_to_json(plan: CompactionPlan) -> Mapping[str, Any]:
    return {
        "would_merge": sum(len(group.objects) for group in plan.groups),
        "would_create": len(plan.groups),
        "would_delete": len(plan.deletions),
        "bytes": sum(group.size_bytes for group in plan.groups),
        "kept_for_now": plan.waiting,
    }


def _describe_report(report: CompactionReport, seconds: float) -> str:
    rate = report.bytes_read / max(seconds, 0.001) / 1e6
    return (
        f"merged {format_count(report.merged, 'object')} into {report.created} ({report.bytes_read:,} bytes to "
        f"{report.bytes_written:,}, {rate:.1f} MB/s), deleted {format_count(report.deleted, 'replaced object')}, "
        f"skipped {len(report.skipped)}"
    )


def _report_to_json(report: CompactionReport, seconds: float) -> Mapping[str, Any]:
    return {
        "merged": report.merged,
        "created": report.created,
        "deleted": report.deleted,
        "bytes_read": report.bytes_read,
        "bytes_written": report.bytes_written,
        "seconds": round(seconds, 3),
        "skipped": report.skipped,
    }
