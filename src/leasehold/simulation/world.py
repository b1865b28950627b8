"""The state of one simulated run: services, processes, and the truth about records and leases.

`faults` decides which faults occur and `fault_injection` carries them out. The checkers decide whether a promise is
broken.
"""

from __future__ import annotations

import contextvars
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from leasehold.core.events import Event, PageRead
from leasehold.core.leases.row_writes import Row
from leasehold.core.model import LeaseKey, ShardId, WorkerId
from leasehold.core.record import UserRecord
from leasehold.ports import Page
from leasehold.simulation.checkers.monitor import PromiseMonitor
from leasehold.simulation.environment.archived_objects import (
    ArchivedObject,
    ArchiveRead,
    read_archived_object,
)
from leasehold.simulation.environment.ledger import Ledger
from leasehold.simulation.environment.load import LoadPlan
from leasehold.simulation.environment.network import Dependency
from leasehold.simulation.environment.objects import Put
from leasehold.simulation.environment.ownership import Delivery, Ownerships, lease_change
from leasehold.simulation.environment.process import (
    ProcessClock,
    ProcessState,
    Role,
    SimulatedLoop,
    SimulatedProcess,
)
from leasehold.simulation.environment.query_history import (
    BoundedRun,
    CommittedBatch,
    DeliveredSlice,
    PlannedBatch,
    QueryHistory,
)
from leasehold.simulation.environment.services import SimulatedServices
from leasehold.simulation.environment.streams import ONE_STREAM, StreamPlan
from leasehold.simulation.environment.table import RowChange
from leasehold.simulation.environment.trace import WORLD, Trace, event_line
from leasehold.simulation.faults import FaultMix
from leasehold.simulation.runtime import Runtime
from leasehold.worker.settings import ConsumerSettings

# Creates the main coroutine of a process.
MakeMain = Callable[["World", SimulatedProcess], Coroutine[Any, Any, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """What a world is made of. The same spec gives the same run."""

    seed: int
    shards: int
    mix: FaultMix
    settings: ConsumerSettings
    runtime: Runtime = Runtime.WORKER
    streams: StreamPlan = ONE_STREAM
    load: LoadPlan | None = None  # None: all records are alike, and the leader counts leases
    has_compaction: bool = False  # the archive is compacted and read while it is written

    def rng_for(self, purpose: str) -> random.Random:
        """Return a random generator for one purpose, so that draws for one purpose do not change the others."""
        return random.Random(f"{self.seed}:{purpose}")  # noqa: S311 - no secret


class World:
    """Everything in one run. Create it while its loop runs.

    It has more than 12 attributes because it is the whole state of a run.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        spec: WorldSpec,
        make_main: MakeMain,
        show: Callable[[str], object] | None = None,
    ) -> None:
        self.spec = spec
        self.services = SimulatedServices(
            loop,
            shards=spec.shards,
            is_two_phase=spec.mix.is_two_phase,
            streams=spec.streams,
            rng_for=spec.rng_for,
        )
        self.services.table.on_change = self._row_changed
        self.services.objects.on_put = self._object_put
        self.services.objects.on_delete = self._object_deleted
        self.services.network.on_refused = self._call_refused
        self.trace = Trace(self.now_ms, show)
        self.ledger = Ledger()
        self.ownerships = Ownerships()
        self.archived: dict[str, ArchivedObject] = {}
        self.query = QueryHistory()
        self.processes: list[SimulatedProcess] = []
        self.shards_read: set[LeaseKey] = set()  # shards of which a process has read a page
        self.on_ended: Callable[[SimulatedProcess], None] = lambda _: None
        self.rows_were_destroyed = False
        # A shard that was trimmed before it was read ends without naming its children.
        self.shards_were_trimmed = False
        self.promises = PromiseMonitor(self, self.trace)
        self._loop = loop
        self._make_main = make_main
        self.context = contextvars.copy_context()  # belongs to no process

    @property
    def settings(self) -> ConsumerSettings:
        """The settings of every worker."""
        return self.spec.settings

    @property
    def load(self) -> LoadPlan | None:
        """The unequal loads of the run, if it has any."""
        return self.spec.load

    @property
    def handlers_fail_at_random(self) -> bool:
        """Whether handlers also fail on sound records."""
        return self.spec.mix.failing_share > 0

    @property
    def is_archived(self) -> bool:
        """Whether the processes write their records to the archive."""
        return self.spec.runtime is Runtime.ARCHIVE or self.query.has_archive

    @property
    def clock(self) -> ProcessClock:
        """A clock that is always right."""
        return self.services.clock

    def now_ms(self) -> int:
        """Return the time since the start of the run."""
        return self.clock.now_ms()

    # -- processes ---------------------------------------------------------------------------------------------

    def start(self, worker: str | None = None) -> SimulatedProcess:
        """Start a worker with this worker id, or with a new one."""
        return self.start_process(self._make_main, worker=worker)

    def start_process(
        self,
        make_main: MakeMain,
        *,
        worker: str | None = None,
        role: Role = Role.WORKER,
        runs_for: SimulatedProcess | None = None,
    ) -> SimulatedProcess:
        """Start a process. It writes to the lease table for the member `runs_for`, by default for itself."""
        number = len(self.processes)
        name = WorkerId(worker or f"w-{number}")
        process = SimulatedProcess(f"p{number}", name, self._loop, role=role, runs_for=runs_for)
        process.on_killed = lambda: self._process_exited(process)
        self.processes.append(process)
        process.start(lambda: make_main(self, process))
        assert process.main is not None
        process.main.add_done_callback(lambda _: self._main_done(process), context=self.context)
        return process

    @property
    def running(self) -> list[SimulatedProcess]:
        """The processes that are alive and were not asked to stop."""
        return [process for process in self.processes if process.is_alive and not process.is_stopping]

    @property
    def running_workers(self) -> list[SimulatedProcess]:
        """The running processes that are workers."""
        return [process for process in self.running if process.role is Role.WORKER]

    def stop(self, process: SimulatedProcess) -> None:
        """Send SIGTERM."""
        if process.is_alive and not process.is_stopping:
            self.trace.add(WORLD, "stops", "", process.name)
            process.stop.set()

    async def close_processes(self) -> None:
        """Kill all processes and close their tasks, at the end of the run."""
        logging.disable(logging.CRITICAL)  # closed coroutines of dead processes may log errors of no interest
        try:
            self._loop.kill_all(self.processes)
        finally:
            logging.disable(logging.NOTSET)

    # -- faults ------------------------------------------------------------------------------------------------

    def overwrite_row(self, key: str, row: Row | None) -> None:
        """Replace a row without a condition, as an operator does."""
        self.services.table.replace(key, row)

    def destroy_row(self, key: str) -> None:
        """Delete a row, and with it the fleet's progress on that shard."""
        self.rows_were_destroyed = True
        self.services.table.replace(key, None)

    # -- what the processes do ---------------------------------------------------------------------------------

    def observe(self, process: SimulatedProcess, event: Event) -> None:
        """Receive an event of a process. Events of dead processes are ignored."""
        if not process.is_alive:
            return
        if isinstance(event, PageRead):
            self.shards_read.add(event.shard_key)
        line = event_line(event)
        if line is not None:
            self.trace.add(process.name, *line)
        self.promises.notify(lambda checker: checker.event_observed(process, event))

    def page_read(self, process: SimulatedProcess, stream: str, page: Page) -> None:
        """A process has read a page from a stream."""
        self.promises.notify(lambda checker: checker.page_read(process, stream, page))

    def subscription_opened(self, process: SimulatedProcess, stream: str, shard: ShardId) -> None:
        """A process has subscribed to a shard."""
        key = self.services.streams.key_of(stream, shard)
        self.promises.notify(lambda checker: checker.subscription_opened(process, key))

    def subscription_closed(self, process: SimulatedProcess, stream: str, shard: ShardId) -> None:
        """A process has closed a subscription to a shard."""
        key = self.services.streams.key_of(stream, shard)
        self.promises.notify(lambda checker: checker.subscription_closed(process, key))

    def delivery_began(self, delivery: Delivery) -> None:
        """A handler was called."""
        self.promises.notify(lambda checker: checker.delivery_began(delivery))

    def delivery_done(self, delivery: Delivery) -> None:
        """A handler has done its records. Records that are archived are done when their objects exist."""
        delivery.is_done = True
        if not self.is_archived:
            self.ledger.shard(delivery.shard).mark_done(range(delivery.first, delivery.last + 1))
        self.promises.notify(lambda checker: checker.delivery_done(delivery))

    def slice_delivered(self, delivered: DeliveredSlice) -> None:
        """A task of a query passes rows to its sink."""
        if delivered.by.is_alive:
            self.promises.notify(lambda checker: checker.slice_delivered(delivered))

    def batch_planned(self, planned: PlannedBatch) -> None:
        """Spark has logged a batch."""
        number = planned.generation_id.number
        self.trace.add(planned.by.name, "plans", "", f"batch {planned.batch}, generation {number}")
        self.promises.notify(lambda checker: checker.batch_planned(planned))

    def batch_committed(self, committed: CommittedBatch) -> None:
        """All tasks of a batch have succeeded. A sink that stores batch ids keeps the first commit of each batch."""
        rows = sum(len(each.records) for each in committed.slices)
        self.trace.add(committed.by.name, "commits", "", f"batch {committed.batch}, {rows} rows")
        if not self.is_archived:
            self._store_batch(committed)
        self.promises.notify(lambda checker: checker.batch_committed(committed))

    def bounded_run_ended(self, run: BoundedRun) -> None:
        """A run with `availableNow` has ended because it has read every shard to its tip."""
        self.trace.add(run.by.name, "read all")
        self.promises.notify(lambda checker: checker.bounded_run_ended(run))

    def _store_batch(self, committed: CommittedBatch) -> None:
        stored = self.query.sink.setdefault(
            (committed.generation_id.query_id, committed.batch), committed.slices
        )
        for each in stored:
            shard_ledger = self.ledger.shard(each.shard)
            shard_ledger.mark_done(shard_ledger.index_of[key] for key in each.records)

    def dead_letter_stored(self, stream: str, shard: ShardId, record: UserRecord) -> None:
        """A record was stored as a dead letter."""
        shard_key = self.services.streams.key_of(stream, shard)
        shard_ledger = self.ledger.shard(shard_key)
        key = (int(record.sequence_number), record.sub_sequence_number)
        shard_ledger.mark_done([shard_ledger.index_of[key]])
        self.services.sink.dead_letters.add((shard_key, key))

    def unhandled_error(self, context: dict[str, Any]) -> None:
        """An error reached the event loop because no task waited for it."""
        self.promises.report("no-unhandled-error", f"{context.get('exception') or context.get('message')!r}")

    def _row_changed(self, change: RowChange) -> None:
        changed = lease_change(change)
        next_index = 0
        if changed.after is not None:
            next_index = self.ledger.shard(changed.after.key).index_after(changed.after.checkpoint)
        # Invariant: checkers see the ownerships as they are after the change.
        self.ownerships.apply(changed, next_index)
        self.promises.notify(lambda checker: checker.lease_changed(changed))

    def _object_put(self, put: Put) -> None:
        if put.key not in self.archived and put.after is not None:
            created = read_archived_object(put.key, put.after, self.services.streams.key_of)
            if created is not None:
                self._object_created(created)
        stored = self.archived.get(put.key)
        self.promises.notify(lambda checker: checker.object_put(put, stored))

    def _object_deleted(self, key: str) -> None:
        deleted = self.archived.pop(key, None)
        if deleted is not None:
            self.promises.notify(lambda checker: checker.object_deleted(deleted))

    def archive_read(self, read: ArchiveRead) -> None:
        """A process has read the whole archive."""
        if read.by.is_alive:
            self.trace.add(read.by.name, "read archive", "", f"{len(read.records)} records")
            self.promises.notify(lambda checker: checker.archive_read(read))

    def _object_created(self, created: ArchivedObject) -> None:
        self.archived[created.name] = created
        shard_ledger = self.ledger.shard(created.shard)
        indexes = [shard_ledger.index_of.get(key) for key in created.records]
        shard_ledger.mark_done(index for index in indexes if index is not None)
        if None in indexes:
            self.promises.report("nothing-invented", f"{created.name} has records that were never produced")

    def _call_refused(self, process: SimulatedProcess, dependency: Dependency) -> None:
        self.promises.notify(lambda checker: checker.call_refused(process, dependency))

    def _main_done(self, process: SimulatedProcess) -> None:
        if process.state is not ProcessState.DEAD:
            process.state = ProcessState.ENDED
            self._process_exited(process)
            self.on_ended(process)

    def _process_exited(self, process: SimulatedProcess) -> None:
        verb = "killed" if process.state is ProcessState.DEAD else "ended"
        self.trace.add(WORLD, verb, "", f"{process.name} {process.worker}")
        self.promises.notify(lambda checker: checker.process_exited(process))
        # The reactions to an exit belong to no process.
        for react in list(process.on_exit):
            self.context.copy().run(react)
