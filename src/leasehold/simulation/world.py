"""The world of one seed: a stream, a lease table, a sink, and processes that run the shipped worker.

Holds what is true. What goes wrong is decided by `faults` and done by `acts`; what must hold is said by the checkers.
How a process is made (`MakeMain`) is passed in, so that other kinds of members can live here, too.
"""

from __future__ import annotations

import contextvars
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from leasehold.adapters.memory.stream import MemoryStream
from leasehold.core.events import Event
from leasehold.core.leases.lease_row import is_lease_row
from leasehold.core.leases.row_writes import Row
from leasehold.core.model import Lease, LeaseKey, ShardId, WorkerId
from leasehold.core.record import UserRecord
from leasehold.core.shards.shard_graph import unfinished_parents
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.stream import StreamState as StreamModel
from leasehold.ports import Page
from leasehold.simulation.checkers import CHECKERS, Checker
from leasehold.simulation.checkers.base import BrokenPromise
from leasehold.simulation.faults import FaultMix
from leasehold.simulation.ledger import Ledger
from leasehold.simulation.network import Network, NetworkConditions
from leasehold.simulation.ownership import Delivery, LeaseChange, Ownerships, RowReader, lease_change
from leasehold.simulation.process import ProcessClock, ProcessState, SimulatedLoop, SimulatedProcess
from leasehold.simulation.sink import Sink
from leasehold.simulation.stream import ProcessStream, StreamQuirks
from leasehold.simulation.table import ProcessRows, RowChange, SimulatedTable
from leasehold.simulation.trace import WORLD, Trace, event_line
from leasehold.simulation.virtual_time import START_WALL_MS
from leasehold.worker.settings import ConsumerSettings

STREAM: Final = "orders"
APPLICATION: Final = "billing"

MakeMain = Callable[["World", SimulatedProcess], Coroutine[Any, Any, object]]


class World:
    """Everything there is. To be made while its loop runs."""

    def __init__(
        self,
        loop: SimulatedLoop,
        *,
        seed: int,
        shards: int,
        mix: FaultMix,
        settings: ConsumerSettings,
        make_main: MakeMain,
        show: Callable[[str], object] | None = None,
        checkers: Sequence[type[Checker]] = CHECKERS,
    ) -> None:
        self.seed = seed
        self.mix = mix
        self.settings = settings
        self.trace = Trace(self.now_ms, show)
        self.clock = ProcessClock(loop)
        self.rng = self.rng_for("world")
        self.ledger = Ledger()
        self.ownerships = Ownerships()
        self.processes: list[SimulatedProcess] = []
        self.rows_were_destroyed = False
        self.shards_were_trimmed = (
            False  # one that is gone before it was read ends without naming its children
        )
        self.broken: list[BrokenPromise] = []
        self.on_broken_promise: Callable[[], None] = lambda: None
        self.network = Network(loop, NetworkConditions(self.rng_for("weather")))
        self.table = SimulatedTable(self.now_ms, self.rng_for("scans"))
        self.table.on_change = self._row_changed
        self.quirks = StreamQuirks(self.rng_for("oddities"))
        self.sink = Sink(is_two_phase=mix.is_two_phase)
        self.service = KinesisModel()
        self.service.create_stream(START_WALL_MS, STREAM, shard_count=shards)
        self._reader = RowReader()
        self._loop = loop
        self._make_main = make_main
        self._outside = contextvars.copy_context()
        self._checkers = [kind(self, self._report) for kind in checkers]

    # -- time and chance ---------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Since the beginning."""
        return round(self._loop.time() * 1000)

    def rng_for(self, purpose: str) -> random.Random:
        """A source of chance of its own, so that one use does not disturb the others."""
        return random.Random(f"{self.seed}:{purpose}")  # noqa: S311 - a world is no secret

    # -- processes ---------------------------------------------------------------------------------------------

    def start(self, worker: str | None = None) -> SimulatedProcess:
        """Start a process: with this worker id, or with a new one."""
        name = f"p{len(self.processes)}"
        process = SimulatedProcess(name, WorkerId(worker or f"w-{len(self.processes)}"), self._loop)
        process.on_killed = lambda: self._gone(process)
        self.processes.append(process)
        process.start(lambda: self._make_main(self, process))
        assert process.main is not None
        process.main.add_done_callback(lambda _: self._ended(process), context=self._outside)
        return process

    def rows_of(self, process: SimulatedProcess) -> ProcessRows:
        """The lease table as a process reaches it."""
        return ProcessRows(self.table, self.network, process)

    def stream_of(self, process: SimulatedProcess) -> ProcessStream:
        """The stream as a process reaches it."""
        stream = MemoryStream(self.service, STREAM, self.clock)
        return ProcessStream(stream, self.network, process, self.quirks, self.page_read)

    @property
    def running(self) -> list[SimulatedProcess]:
        """Processes that are neither dead nor on their way out."""
        return [process for process in self.processes if process.is_alive and not process.is_stopping]

    def stop(self, process: SimulatedProcess) -> None:
        """SIGTERM."""
        if process.is_alive and not process.is_stopping:
            process.is_stopping = True
            self.trace.add(WORLD, "stops", "", process.name)
            process.stop.set()

    def call_later(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Let something happen after a while."""
        self.network.call_later(delay_ms, action)

    # -- what is true ------------------------------------------------------------------------------------------

    @property
    def stream(self) -> StreamModel:
        """The stream as it is now."""
        return self.service.stream(self.clock.wall_ms(), STREAM)

    def leases(self) -> Sequence[Lease]:
        """Every lease that can be read, as it is in the table."""
        leases = (self._reader.lease(row) for row in self.table.rows())
        return [lease for lease in leases if lease is not None]

    def has_unreadable_rows(self) -> bool:
        """Whether some row claims to be a lease and is none."""
        return any(is_lease_row(row) and self._reader.lease(row) is None for row in self.table.rows())

    def readable_leases(self) -> Sequence[Lease]:
        """Those whose shard can be read now: not finished, all parents ended."""
        by_key: dict[LeaseKey, Lease] = {lease.key: lease for lease in self.leases()}
        return [
            lease
            for lease in by_key.values()
            if not lease.checkpoint.is_shard_end and not unfinished_parents(lease, by_key)
        ]

    def overwrite_row(self, key: str, row: Row | None) -> None:
        """Change a row as no member would."""
        self.table.replace(key, row)

    def destroy_row(self, key: str) -> None:
        """Delete a row, and with it what the fleet knew."""
        self.rows_were_destroyed = True
        self.table.replace(key, None)

    # -- what happens ------------------------------------------------------------------------------------------

    def observe(self, process: SimulatedProcess, event: Event) -> None:
        """A process tells something. A dead one tells nothing."""
        if not process.is_alive:
            return
        line = event_line(event)
        if line is not None:
            self.trace.add(process.name, *line)
        for checker in self._checkers:
            checker.event_observed(process, event)

    def page_read(self, process: SimulatedProcess, page: Page) -> None:
        """A process was given records by the stream."""
        for checker in self._checkers:
            checker.page_read(process, page)

    def delivery_began(self, delivery: Delivery) -> None:
        """A handler was given records."""
        for checker in self._checkers:
            checker.delivery_began(delivery)

    def delivery_done(self, delivery: Delivery) -> None:
        """A handler says that its records are done."""
        delivery.is_done = True
        self.ledger.shard(delivery.shard).mark_done(range(delivery.first, delivery.last + 1))
        for checker in self._checkers:
            checker.delivery_done(delivery)

    def dead_lettered(self, shard: ShardId, record: UserRecord) -> None:
        """A dead letter has arrived."""
        book = self.ledger.shard(shard)
        place = (int(record.sequence_number), record.sub_sequence_number)
        book.mark_done([book.index_of[place]])
        self.sink.dead_lettered.add((shard, place))

    def report_broken_promise(self, promise: str, detail: str) -> None:
        """Something happened that must never happen, and no checker is needed to see it."""
        self._report(BrokenPromise(self.now_ms(), promise, detail))

    def tell(self, moment: Callable[[Checker], None]) -> None:
        """Tell all checkers that a moment has come."""
        for checker in self._checkers:
            moment(checker)

    def report_unhandled_error(self, context: dict[str, Any]) -> None:
        """The loop met an error that nobody waited for."""
        self.report_broken_promise(
            "no-error-unseen", f"{context.get('exception') or context.get('message')!r}"
        )

    async def close_processes(self) -> None:
        """Take apart what killed processes left behind. The end of the world."""
        logging.disable(
            logging.CRITICAL
        )  # what a wreck complains about while it is taken apart is of no interest
        try:
            self._loop.kill_all(self.processes)
        finally:
            logging.disable(logging.NOTSET)

    def _row_changed(self, change: RowChange) -> None:
        seen: LeaseChange = lease_change(change)
        next_index = 0
        if seen.after is not None:
            next_index = self.ledger.shard(ShardId(seen.after.shard_id)).first_after(seen.after.checkpoint)
        self.ownerships.note(seen, next_index)
        for checker in self._checkers:
            checker.lease_changed(seen)

    def _ended(self, process: SimulatedProcess) -> None:
        if process.state is not ProcessState.DEAD:
            process.state = ProcessState.ENDED
            self._gone(process)

    def _gone(self, process: SimulatedProcess) -> None:
        verb = "killed" if process.state is ProcessState.DEAD else "ended"
        self.trace.add(WORLD, verb, "", f"{process.name} {process.worker}")
        for checker in self._checkers:
            checker.process_gone(process)

    def _report(self, broken: BrokenPromise) -> None:
        if not self.broken:
            self.trace.add(WORLD, "BROKEN", "", f"{broken.promise}: {broken.detail}")
        self.broken.append(broken)
        self.on_broken_promise()
