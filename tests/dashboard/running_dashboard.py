"""A dashboard on a thread, with views that the test publishes."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from leasehold.core.observing.dashboard.fleet_history import FleetHistory
from leasehold.core.observing.dashboard.view_changes import View
from leasehold.dashboard.app import LiveSource, RecordedSource, Source, make_app
from leasehold.dashboard.recording import Playback
from leasehold.dashboard.server import HOST, DashboardServer
from leasehold.dashboard.view_hub import ViewHub


@dataclass(frozen=True)
class RunningDashboard:
    """The address of a server, and how to publish."""

    url: str
    hub: ViewHub | None
    loop: asyncio.AbstractEventLoop
    server: DashboardServer

    @property
    def connections(self) -> int:
        """How many connections the server has."""
        return self.server.connections

    def publish(self, view: View) -> None:
        """Publish a view, and wait until it is."""

        async def run() -> None:
            assert self.hub is not None
            self.hub.publish(view)

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(30)


@contextmanager
def run_dashboard(
    view: View, history: FleetHistory | None = None, *, port: int = 0
) -> Iterator[RunningDashboard]:
    """Serve a view until the end of the block."""
    hub = ViewHub(view)
    with _serve(LiveSource(hub, history or FleetHistory()), hub, port) as running:
        yield running


@contextmanager
def run_playback(playback: Playback) -> Iterator[RunningDashboard]:
    """Serve a recording until the end of the block."""
    with _serve(RecordedSource(playback), None) as running:
        yield running


@contextmanager
def _serve(source: Source, hub: ViewHub | None, port: int = 0) -> Iterator[RunningDashboard]:
    server = DashboardServer(make_app(source, listen_host=HOST), port, hub)
    url = server.url
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.run()), name="dashboard")
    thread.start()
    try:
        yield RunningDashboard(url, hub, loop, server)
    finally:
        server.stop()
        thread.join(30)
        loop.close()
