"""The source and the archive sink with gates at the points of possible failures.

A gate has the name of the application and of the point. A file in the folder of gates selects its action: `hold` waits
until the file is deleted, `fail` raises once, `die` kills the process once. A waiting process creates a file of its
own.
"""

import json
import os
import signal
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from leasehold.spark.archive_sink import ArchiveCommit, ArchiveSink, ArchiveStreamWriter
from leasehold.spark.options import SourceOptions
from leasehold.spark.source import KinesisSource, KinesisStreamReader

FOLDER = "TEST_GATES_FOLDER"  # not LEASEHOLD_...: the worker reads such variables as settings
SOURCE, SINK = "leasehold-gated", "leasehold-gated-archive"

BEFORE_PIN = "before-pin"
PINNED = "pinned"  # and not delivered
WRITTEN = "written"  # and not committed
COMMITTED = "committed"  # by the sink, not yet by Spark


class Gates:
    """The gates of one application."""

    def __init__(self, folder: Path, application: str) -> None:
        self._folder, self._application = folder, application

    def set(self, point: str, action: str) -> None:
        """Set the action of a gate."""
        self._file(point, action).touch()

    def open(self, point: str, action: str = "hold") -> None:
        """Let waiting processes continue."""
        self._file(point, action).unlink(missing_ok=True)

    def is_reached(self, point: str) -> bool:
        """True if a process waits or has waited at the gate."""
        return any(self._folder.glob(f"{self._application}.at.{point}.*"))

    def attempts(self) -> dict[tuple[int, str], list[list[list[str]]]]:
        """The positions of the rows that each attempt has written, for each batch and shard."""
        found: defaultdict[tuple[int, str], list[list[list[str]]]] = defaultdict(list)
        for path in self._folder.glob(f"{self._application}.rows.*"):
            written = json.loads(path.read_text())
            for shard, rows in groupby(written["rows"], key=itemgetter(0)):
                found[written["batch"], shard].append(list(rows))
        return found

    def pass_through(self, point: str) -> None:
        """Perform the action of a gate. A process calls this at each point."""
        hold, fail, die = (self._file(point, action) for action in ("hold", "fail", "die"))
        if hold.exists():
            self._file(f"{point}.{os.getpid()}", "at").touch()
        while hold.exists():
            time.sleep(0.02)
        if _delete(die):
            os.kill(os.getpid(), signal.SIGKILL)
        if _delete(fail):
            raise RuntimeError(f"an intended failure at {point}")

    def record_rows(self, rows: list[list[str]]) -> None:
        """Record the rows that one write task has written."""
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert batch is not None
        path = self._folder / f"{self._application}.rows.{uuid.uuid4().hex}"
        written = {"batch": int(batch), "rows": rows}
        part = path.with_name(f"part.{path.name}")
        part.write_text(json.dumps(written))
        part.rename(path)

    def _file(self, point: str, action: str) -> Path:
        return self._folder / f"{self._application}.{action}.{point}"


def _delete(file: Path) -> bool:
    with suppress(FileNotFoundError):
        file.unlink()
        return True
    return False


def gates_of(application: str) -> Gates:
    """The gates of an application, for a process of Spark."""
    return Gates(Path(os.environ[FOLDER]), application)


class GatedReader(KinesisStreamReader):
    """Has gates before the read and after the pin."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._application = options.application

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_application": self._application}

    def read(self, partition: InputPartition) -> Iterator[Any]:
        gates = gates_of(self._application)
        gates.pass_through(BEFORE_PIN)
        rows = super().read(partition)
        first = list(
            islice(rows, 1)
        )  # the first slice of the task is pinned now, and most likely all of them
        gates.pass_through(PINNED)
        yield from chain(first, rows)


class GatedSource(KinesisSource):
    """The source with gates."""

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def streamReader(self, schema: Any) -> GatedReader:  # noqa: N802 - Spark's name
        return GatedReader(self._checked)


class GatedWriter(ArchiveStreamWriter):
    """Has gates after the write and after the commit. The parent folder of the archive has the application's name."""

    @property
    def gates(self) -> Gates:
        return gates_of(Path(self._settings.url).parent.name)

    def write(self, iterator: Iterator[Any]) -> ArchiveCommit:
        rows: list[list[str]] = []

        def recorded() -> Iterator[Any]:
            for each in iterator:
                names = ("shardId", "sequenceNumber", "subSequenceNumber")
                columns = [each.column(name).to_pylist() for name in names]
                rows.extend([str(value) for value in row] for row in zip(*columns, strict=True))
                yield each

        done = super().write(recorded())
        self.gates.record_rows(rows)
        self.gates.pass_through(WRITTEN)
        return done

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        super().commit(messages, batchId)
        self.gates.pass_through(COMMITTED)


class GatedSink(ArchiveSink):
    """The archive with gates."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return SINK

    def streamWriter(self, schema: Any, overwrite: bool) -> GatedWriter:  # noqa: N802 - Spark's name
        return GatedWriter(super().streamWriter(schema, overwrite)._settings)
