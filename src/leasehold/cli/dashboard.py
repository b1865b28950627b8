"""`leasehold dashboard`: serves a page that shows a running fleet, or a recorded one. It only reads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from leasehold.cli.connections import Connection, optional_connection_options
from leasehold.cli.extras import needs_extra
from leasehold.cli.option_values import Seconds, refuse_values
from leasehold.cli.output import print_line
from leasehold.inspection.lag_probe import CONCURRENT_PROBES_MAX
from leasehold.inspection.worker_status import health_url


@click.command()
@optional_connection_options
@click.option("--stream", metavar="NAME", help="The stream. Needed for lags if the leases do not name it.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8321,
    show_default=True,
    help="Port on 127.0.0.1; 0 means any free port.",
)
@click.option(
    "--interval",
    type=Seconds(min=1),
    default=5,
    show_default=True,
    metavar="SECONDS",
    help="Time between two reads. Above 2,500 leases it is longer.",
)
@click.option(
    "--watch",
    type=Seconds(min=1),
    default=15,
    show_default=True,
    metavar="SECONDS",
    help="An owner without a heartbeat for so long is silent. Use more than the failover time.",
)
@click.option(
    "--status",
    multiple=True,
    metavar="URL",
    help="Status address of a worker, to read its /health. Repeat it for several workers.",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write everything shown to this new file, without payloads.",
)
@click.option(
    "--replay",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show a recorded file, with a time slider, instead of a running fleet.",
)
def dashboard(*, connection: Connection, replay: Path | None, port: int, **given: Any) -> None:
    """Show a fleet in a browser, live: who reads what, how far behind, and why a shard does not move.

    The page is served on this machine only. The command reads the tables and, for lags, each shard at its checkpoint.
    It writes nothing, and works for Java fleets too. Ctrl-C stops it.
    """
    with needs_extra("dashboard"):
        import starlette  # noqa: F401, PLC0415
        import uvicorn  # noqa: F401, PLC0415
    if replay is not None:
        _serve_recording(replay, port)
        return
    if not connection.has_leases:
        raise click.UsageError(
            "Say where the leases are: --application, --table or --leases, or LEASEHOLD_APPLICATION. "
            "Or show a recording: --replay FILE."
        )
    with refuse_values():
        for address in given["status"]:
            health_url(address)  # a wrong address is an error now, not in each read
    asyncio.run(_serve_fleet(connection, port, **given))


def _serve_recording(file: Path, port: int) -> None:
    from leasehold.dashboard.app import RecordedSource, make_app  # noqa: PLC0415 - `dashboard` has checked the extra
    from leasehold.dashboard.recording import read_recording  # noqa: PLC0415
    from leasehold.dashboard.server import HOST, DashboardServer  # noqa: PLC0415

    source = RecordedSource(read_recording(file))
    server = DashboardServer(make_app(source, listen_host=HOST), port)
    print_line(f"The recording {file} is shown at {server.url} - Ctrl-C stops the server.")
    asyncio.run(server.run())


async def _serve_fleet(
    connection: Connection,
    port: int,
    *,
    stream: str | None,
    interval: float,
    watch: float,
    status: tuple[str, ...],
    record: Path | None,
) -> None:
    from leasehold.adapters.system_clock import SystemClock  # noqa: PLC0415 - `dashboard` has checked the extra
    from leasehold.core.observing.dashboard.fleet_history import FleetHistory  # noqa: PLC0415
    from leasehold.core.observing.dashboard.fleet_view import ViewSettings, empty_view  # noqa: PLC0415
    from leasehold.dashboard.app import LiveSource, make_app  # noqa: PLC0415
    from leasehold.dashboard.poller import Poller  # noqa: PLC0415
    from leasehold.dashboard.recording import Recorder  # noqa: PLC0415
    from leasehold.dashboard.server import HOST, DashboardServer  # noqa: PLC0415
    from leasehold.dashboard.view_hub import ViewHub  # noqa: PLC0415
    from leasehold.inspection.fleet_watch import FleetWatch  # noqa: PLC0415

    clock = SystemClock()
    name = connection.application or connection.settings.lease_table or ""
    settings = ViewSettings(application=name, watch_ms=round(watch * 1000), every_ms=round(interval * 1000))
    hub, history = ViewHub(empty_view(settings, clock.wall_ms())), FleetHistory()
    recorder = Recorder(record, name) if record is not None else None
    server = DashboardServer(make_app(LiveSource(hub, history), listen_host=HOST), port, hub)
    async with connection.lease_table() as table:
        fleet = FleetWatch(
            table,
            connection.stream_opener(threads=CONCURRENT_PROBES_MAX),
            clock,
            watch_ms=settings.watch_ms,
            application=connection.application or "",
            stream=stream or connection.stream,
        )
        poller = Poller(fleet, hub, history, settings, clock, status=status, recorder=recorder)
        print_line(f"The fleet is shown at {server.url} - Ctrl-C stops the server.")
        try:
            await server.run(poller.run())
        finally:
            await fleet.close()
            if recorder is not None:
                recorder.close()
