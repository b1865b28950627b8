"""Measures the load of a query: the share of time in which a batch is under way.

Spark asks a source for the next batch, but does not report that the last batch ended and was committed. The pause of a
trigger, or the end of the query, may lie in between. So the pipeline, which watches the query, writes the end of each
batch to a file on the driver's machine. The file is named after the JVM, which is the parent process of the source's
reader. Without a pipeline, a batch counts as running until Spark asks for the next one, and it is not known whether the
last batch was committed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from leasehold.core.assignment.busy_time import BusyTime
from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.ports import Clock, LoadMeter
from leasehold.spark.query.driver_lock import runtime_folder


class BatchEnds(Protocol):
    """Where the reader of a query finds the end of the last batch, if somebody records it."""

    def last_committed(self) -> GenerationId | None:
        """Return the last generation that was recorded as committed."""
        ...

    def last_end_ms(self) -> int | None:
        """Return when the last recorded batch ended, in milliseconds since 1970. None if no end is recorded."""
        ...


@dataclass(frozen=True, slots=True)
class BatchLoad(LoadMeter):
    """The load of the member of one query."""

    clock: Clock
    ends: BatchEnds
    _busy: BusyTime = field(default_factory=BusyTime)

    def begin(self) -> None:
        """A batch is planned, and Spark begins to run it."""
        self._busy.begin(self.clock.now_ms())

    def end(self) -> None:
        """Spark asks for the next batch. The last batch may have ended earlier."""
        self._end_as_recorded()
        self._busy.end(self.clock.now_ms())

    async def percent(self) -> float | None:
        """The load since the last call."""
        self._end_as_recorded()
        return self._busy.percent(self.clock.now_ms())

    def _end_as_recorded(self) -> None:
        ended_ms = self.ends.last_end_ms()
        if ended_ms is not None:
            self._busy.end(self.clock.now_ms() - max(0, self.clock.wall_ms() - ended_ms))


@dataclass(frozen=True, slots=True)
class BatchEndFile(BatchEnds):
    """The file in which the pipeline reports the end of the last batch to the query's reader process."""

    file: Path

    def record(self, ended_ms: int, committed: GenerationId) -> None:
        """Record that a batch ended and is committed. A file that cannot be written is no reason to fail."""
        written = self.file.with_suffix(".new")
        with suppress(OSError):
            written.write_text(f"{committed.query_id} {committed.number}", encoding="ascii")
            os.utime(written, ns=(ended_ms * 1_000_000,) * 2)
            written.replace(self.file)

    def last_committed(self) -> GenerationId | None:
        """The last generation that was recorded as committed."""
        try:
            query_id, generation = self.file.read_text(encoding="ascii").split()
            return GenerationId(query_id, int(generation))
        except (OSError, ValueError):
            return None

    def last_end_ms(self) -> int | None:
        """When the last recorded batch ended, in milliseconds since 1970. None if no end is recorded."""
        try:
            return self.file.stat().st_mtime_ns // 1_000_000
        except OSError:
            return None

    def delete(self) -> None:
        """Delete the file, after the query has ended."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)


def batch_end_file(jvm: int) -> BatchEndFile:
    """The file for the queries of a JVM, by its process id."""
    return BatchEndFile(runtime_folder() / f"{jvm}.batch-end")
