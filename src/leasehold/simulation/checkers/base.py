"""What all checkers have in common: the things they hear of, and the way to say that a promise is broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from leasehold.core.events import Event
from leasehold.core.model import Lease
from leasehold.kinesis_model.stream import StreamState as StreamModel
from leasehold.ports import Page
from leasehold.simulation.ledger import Ledger
from leasehold.simulation.network import Network
from leasehold.simulation.ownership import Delivery, LeaseChange, Ownerships
from leasehold.simulation.process import SimulatedProcess
from leasehold.simulation.sink import Sink
from leasehold.worker.settings import ConsumerSettings


class WorldView(Protocol):
    """The world as checkers see it: everything that is true, whatever any process believes."""

    @property
    def settings(self) -> ConsumerSettings: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def ownerships(self) -> Ownerships: ...
    @property
    def processes(self) -> Sequence[SimulatedProcess]: ...
    @property
    def network(self) -> Network: ...
    @property
    def sink(self) -> Sink: ...
    @property
    def rows_were_destroyed(self) -> bool: ...
    @property
    def shards_were_trimmed(self) -> bool: ...
    @property
    def stream(self) -> StreamModel: ...

    def now_ms(self) -> int: ...
    def has_unreadable_rows(self) -> bool: ...
    def leases(self) -> Sequence[Lease]:
        """Every lease that can be read, as it is in the table."""
        ...

    def readable_leases(self) -> Sequence[Lease]:
        """Those of them whose shard can be read now: not finished, all parents ended."""
        ...


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """A promise that was not kept."""

    at_ms: int
    promise: str
    detail: str

    def __str__(self) -> str:
        return f"{self.at_ms / 1000:9.3f}s  BROKEN {self.promise}: {self.detail}"


Report = Callable[[BrokenPromise], None]


class Checker:
    """Hears of everything. Each one overrides what it needs."""

    promise: ClassVar[str]

    def __init__(self, scene: WorldView, report: Report) -> None:
        self.scene = scene
        self._report = report

    def broken(self, detail: str) -> None:
        """The promise is broken now."""
        self._report(BrokenPromise(self.scene.now_ms(), self.promise, detail))

    def lease_changed(self, change: LeaseChange) -> None:
        """A row of the lease table was written, made or removed."""

    def delivery_began(self, delivery: Delivery) -> None:
        """A handler was given records."""

    def delivery_done(self, delivery: Delivery) -> None:
        """A handler says that its records are done."""

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        """A process observed something."""

    def page_read(self, process: SimulatedProcess, page: Page) -> None:
        """A process was given records by the stream."""

    def process_gone(self, process: SimulatedProcess) -> None:
        """A process died, or ended."""

    def time_passed(self) -> None:
        """Half a second has passed."""

    def faults_ended(self) -> None:
        """The last fault is over; no more records will be produced."""

    def steady_state_began(self) -> None:
        """Everything is read and balanced. From now on nothing should happen."""

    def steady_state_ended(self) -> None:
        """The processes will be stopped now."""

    def all_stopped(self) -> None:
        """Every process was asked to stop, and has."""
