"""When the batches of a query end, and how busy it is: the share of the time in which one is under way.

Spark tells a source when it wants the next batch, and not when the last one ended and was committed. In between may lie
the pause of a trigger, or the end of the query. So whoever watches the query notes each end beside the driver, in a
file that is named after the JVM, which is the parent of the source's reader. Where nobody watches, a batch lasts until
the next one is wanted, and whether the last one was committed is not known.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from leasehold.core.assignment.busy_time import BusyTime
from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.ports import Clock, LoadMeter
from leasehold.spark.query.driver_lock import runtime_folder


@dataclass(frozen=True, slots=True)
class BatchLoad(LoadMeter):
    """The load of one query's member."""

    clock: Clock
    ends: BatchEndFile
    _busy: BusyTime = field(default_factory=BusyTime)

    def begin(self) -> None:
        """A batch is planned, and Spark goes to work on it."""
        self._busy.begin(self.clock.now_ms())

    def end(self) -> None:
        """The next one is wanted. The last one may have ended sooner."""
        self._end_as_noted()
        self._busy.end(self.clock.now_ms())

    async def percent(self) -> float | None:
        """Since the last call."""
        self._end_as_noted()
        return self._busy.percent(self.clock.now_ms())

    def _end_as_noted(self) -> None:
        noted_ms = self.ends.last_end_ms()
        if noted_ms is not None:
            self._busy.end(self.clock.now_ms() - max(0, self.clock.wall_ms() - noted_ms))


@dataclass(frozen=True, slots=True)
class BatchEndFile:
    """When the last batch of a driver's query ended, as two processes on its machine tell each other."""

    file: Path

    def note(self, ended_ms: int, committed: GenerationId) -> None:
        """A batch has ended, and is committed. What cannot be told is not worth failing for."""
        written = self.file.with_suffix(".new")
        with suppress(OSError):
            written.write_text(f"{committed.query_id} {committed.generation}", encoding="ascii")
            os.utime(written, ns=(ended_ms * 1_000_000,) * 2)
            written.replace(self.file)

    def committed(self) -> GenerationId | None:
        """The last generation that is known to be committed."""
        try:
            query_id, generation = self.file.read_text(encoding="ascii").split()
            return GenerationId(query_id, int(generation))
        except (OSError, ValueError):
            return None

    def last_end_ms(self) -> int | None:
        """Epoch time; None if nobody has noted any."""
        try:
            return self.file.stat().st_mtime_ns // 1_000_000
        except OSError:
            return None

    def delete(self) -> None:
        """The query has ended."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)


def batch_end_file(jvm: int) -> BatchEndFile:
    """Of the queries of a JVM, by its process id."""
    return BatchEndFile(runtime_folder() / f"{jvm}.batch-end")
