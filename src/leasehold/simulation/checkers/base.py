"""The base class of all checkers: hooks for everything that happens, and a way to report a broken promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from leasehold.core.events import Event
from leasehold.core.model import LeaseKey
from leasehold.ports import Page
from leasehold.simulation.environment.archived_objects import ArchivedObject, ArchiveRead
from leasehold.simulation.environment.ledger import Ledger
from leasehold.simulation.environment.load import LoadPlan
from leasehold.simulation.environment.network import Dependency
from leasehold.simulation.environment.objects import Put
from leasehold.simulation.environment.ownership import Delivery, LeaseChange, Ownerships
from leasehold.simulation.environment.process import SimulatedProcess
from leasehold.simulation.environment.query_history import (
    BoundedRun,
    CommittedBatch,
    DeliveredSlice,
    PlannedBatch,
    QueryHistory,
)
from leasehold.simulation.environment.services import SimulatedServices
from leasehold.worker.settings import ConsumerSettings


class WorldView(Protocol):
    """What checkers can see: the true state of everything, which no process can know."""

    @property
    def settings(self) -> ConsumerSettings: ...
    @property
    def services(self) -> SimulatedServices: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def ownerships(self) -> Ownerships: ...
    @property
    def processes(self) -> Sequence[SimulatedProcess]: ...
    @property
    def rows_were_destroyed(self) -> bool: ...
    @property
    def shards_were_trimmed(self) -> bool: ...
    @property
    def load(self) -> LoadPlan | None: ...
    @property
    def handlers_fail_at_random(self) -> bool: ...
    @property
    def is_archived(self) -> bool: ...
    @property
    def query(self) -> QueryHistory: ...
    @property
    def archived(self) -> Mapping[str, ArchivedObject]: ...

    def now_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """A promise that was broken."""

    at_ms: int
    promise: str
    detail: str

    def __str__(self) -> str:
        return f"{self.at_ms / 1000:9.3f}s  BROKEN {self.promise}: {self.detail}"


Report = Callable[[str, str], None]  # promise and detail


class Checker:
    """Checks one promise. A subclass overrides the hooks that it needs."""

    promise: ClassVar[str]

    def __init__(self, world: WorldView, report: Report) -> None:
        self.world = world
        self._report = report

    def report(self, detail: str) -> None:
        """Report that the promise is broken now."""
        self._report(self.promise, detail)

    def lease_changed(self, change: LeaseChange) -> None:
        """A row of the lease table was created, updated or deleted."""

    def delivery_began(self, delivery: Delivery) -> None:
        """A handler was called."""

    def delivery_done(self, delivery: Delivery) -> None:
        """A handler has done its records."""

    def object_put(self, put: Put, stored: ArchivedObject | None) -> None:
        """A put has reached the object store. `stored` is the archived object with this name after it, if any."""

    def object_deleted(self, deleted: ArchivedObject) -> None:
        """An archived object was deleted."""

    def archive_read(self, read: ArchiveRead) -> None:
        """A process has read the whole archive."""

    def slice_delivered(self, delivered: DeliveredSlice) -> None:
        """A task of a Spark query passes rows to its sink."""

    def batch_planned(self, planned: PlannedBatch) -> None:
        """Spark has logged a batch."""

    def batch_committed(self, committed: CommittedBatch) -> None:
        """All tasks of a batch have succeeded, and the sink has committed it."""

    def bounded_run_ended(self, run: BoundedRun) -> None:
        """A run of a query with `availableNow` has ended by itself."""

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        """A process has emitted an event."""

    def page_read(self, process: SimulatedProcess, stream: str, page: Page) -> None:
        """A process has read a page from a stream."""

    def subscription_opened(self, process: SimulatedProcess, shard: LeaseKey) -> None:
        """A process has subscribed to a shard."""

    def subscription_closed(self, process: SimulatedProcess, shard: LeaseKey) -> None:
        """A process has closed a subscription to a shard."""

    def call_refused(self, process: SimulatedProcess, dependency: Dependency) -> None:
        """A process has sent a request that its credentials do not allow."""

    def process_exited(self, process: SimulatedProcess) -> None:
        """A process was killed, or has ended."""

    def time_passed(self) -> None:
        """Half a second has passed."""

    def faults_ended(self) -> None:
        """The last fault is over; no more records will be produced."""

    def load_began(self) -> None:
        """All records are done. Records of unequal load follow, and from now on only load moves leases."""

    def load_ended(self) -> None:
        """The unequal load is over."""

    def steady_state_began(self) -> None:
        """All records are done and the shards are balanced. From now on no lease should move."""

    def steady_state_ended(self) -> None:
        """The processes will be stopped now."""

    def all_stopped(self) -> None:
        """Every process was asked to stop, and has ended."""
