"""`leasehold explain`: says why each shard moves or does not, and what to do. It only reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import click

from leasehold.adapters.system_clock import SystemClock
from leasehold.cli.connections import Connection, connection_options
from leasehold.cli.leases import belongs_to_stream, stream_name
from leasehold.cli.option_values import Seconds
from leasehold.cli.output import (
    UnknownResult,
    format_count,
    print_json,
    print_line,
    progress_lines,
    report_errors,
)
from leasehold.core.finding import Explanation, Finding, Severity, finding_to_json
from leasehold.core.model import Lease, LeaseKey, StreamIdentifier
from leasehold.core.observing.explain.explain_fleet import explain_fleet, explain_listed_shard
from leasehold.core.observing.explain.facts import FleetFacts
from leasehold.core.shown_text import shown, shown_sentence
from leasehold.errors import NotFoundError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.inspection.fleet_facts import NamedStream, Streams, read_facts
from leasehold.inspection.lag_probe import CONCURRENT_PROBES_MAX
from leasehold.inspection.worker_status import read_workers

WATCH_S: Final = 15.0
HEARTBEAT_S: Final = 5.0  # between two heartbeats of a worker with the default failover time
_SILENT: Final = frozenset({"owner_silent", "leader_silent", "no_active_worker", "free"})
_MARKS: Final = {Severity.OK: " ", Severity.NOTICE: "?", Severity.PROBLEM: "!"}


@click.command()
@connection_options
@click.argument("shard", required=False)
@click.option("--stream", metavar="NAME", help="The stream. Needed for lags if the leases do not name it.")
@click.option(
    "--watch",
    type=Seconds(min=1),
    default=WATCH_S,
    show_default=True,
    metavar="SECONDS",
    help="Time between the two reads. Use more than the failover time.",
)
@click.option(
    "--status",
    multiple=True,
    metavar="URL",
    help="Status address of a worker, to read its /health. Repeat it for several workers.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with a stable code for each finding.")
def explain(
    *,
    connection: Connection,
    shard: str | None,
    stream: str | None,
    watch: float,
    status: tuple[str, ...],
    as_json: bool,
) -> None:
    """Explain why each shard moves or does not, and what to do.

    The command reads the lease table twice and each shard at its checkpoint, and writes nothing. SHARD limits the
    output to one shard. Lines that begin with ! need action.

    \b
    Exit codes:
      0  nothing needs action
      1  at least one line needs action
      2  wrong options, no such shard, or the fleet cannot be read
    """  # noqa: D301 - click needs the character
    with report_errors(UnknownResult), progress_lines(lambda: f"watching the fleet for {watch:g} s"):
        facts = asyncio.run(_read(connection, stream or connection.stream, watch, status))
        explanation = _limit_to(explain_fleet(facts), shard, facts)
    if as_json:
        print_json(_to_json(explanation))
    else:
        for line in _lines(explanation, facts):
            print_line(line)
    if watch <= HEARTBEAT_S and any(each.code in _SILENT for each in explanation.all_findings):
        click.echo(
            f"The fleet was watched for {watch:g} s only. A worker sends a heartbeat every {HEARTBEAT_S:g} s, or less "
            "often with a longer failover time, so a living one may seem silent: use a longer --watch.",
            err=True,
        )
    if explanation.has_problem:
        raise SystemExit(1)


async def _read(
    connection: Connection, stream: str | None, watch: float, status: Sequence[str]
) -> FleetFacts:
    workers = await asyncio.to_thread(read_workers, status)
    async with connection.lease_table() as table, _open_streams(connection, table, stream) as streams:
        return await read_facts(
            table,
            streams,
            SystemClock(),
            watch_ms=round(watch * 1000),
            application=connection.application or "",
            worker_findings=workers.findings,
            worker_idle_ms=workers.idle_ms,
        )


@asynccontextmanager
async def _open_streams(
    connection: Connection, table: LeaseTable, stream: str | None
) -> AsyncIterator[Streams]:
    names = _names((await table.list()).leases, stream)
    open_stream = connection.stream_opener(threads=CONCURRENT_PROBES_MAX)
    opened = {key: NamedStream(name, open_stream(name)) for key, name in names.items()}
    try:
        yield opened
    finally:
        for each in opened.values():
            await each.stream.close()


def _names(leases: Iterable[Lease], stream: str | None) -> Mapping[StreamIdentifier | None, str]:
    named = {
        lease.stream: name
        for lease in leases
        if belongs_to_stream(lease, stream) and (name := stream_name(lease)) is not None
    }
    if not named and stream is not None:
        return {None: stream}
    return named


def _limit_to(explanation: Explanation, shard: str | None, facts: FleetFacts) -> Explanation:
    if shard is None:
        return explanation
    found = {
        key: findings
        for key, findings in explanation.shards.items()
        if shard == key or shard == key.rpartition(":")[2]
    }
    found = found or dict(explain_listed_shard(shard, facts))
    if not found:
        absence = (
            "there is neither a lease nor a listed shard with this id; `leasehold leases` shows all"
            if facts.streams
            else "there is no lease with this id, and the leases do not name their stream: add --stream NAME to find "
            "a shard without a lease"
        )
        raise NotFoundError(f"shard {shown(shard)}: {absence}")
    return Explanation(explanation.fleet, found)


def _lines(explanation: Explanation, facts: FleetFacts) -> Iterable[str]:
    for finding in explanation.fleet:
        yield from _finding_lines("fleet", finding)
    for key, findings in explanation.shards.items():
        for finding in findings:
            yield from _finding_lines(key, finding)
    yield ""
    problems = sum(each.severity is Severity.PROBLEM for each in explanation.all_findings)
    yield f"{format_count(len(explanation.shards), 'shard')}; {format_count(problems, 'problem')}"
    if not facts.streams and explanation.shards:
        yield "The leases do not name their stream: add --stream NAME to see lags, trimmed records and missing leases."


def _finding_lines(subject: str, finding: Finding) -> Iterable[str]:
    yield f"{_MARKS[finding.severity]} {shown(subject)}: {shown_sentence(finding.text)}"
    if finding.remedy:
        yield f"    -> {shown_sentence(finding.remedy)}"


def _to_json(explanation: Explanation) -> Mapping[str, Any]:
    def shard_to_json(key: LeaseKey, findings: Sequence[Finding]) -> Mapping[str, Any]:
        return {"key": key, "findings": [finding_to_json(each) for each in findings]}

    return {
        "ok": not explanation.has_problem,
        "fleet": [finding_to_json(each) for each in explanation.fleet],
        "shards": [shard_to_json(key, findings) for key, findings in explanation.shards.items()],
    }
