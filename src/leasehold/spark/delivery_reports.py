"""Reports which pinned ranges the source has delivered in a task, so that the archive sink can miss one.

A range of which no row reaches the sink leaves no trace in the rows. So each task of the source writes the names of its
ranges to a file, and each write task of the sink reads it. Without a shuffle, source and sink run in the same task, in
two Python processes of one machine. After a shuffle they run in different tasks, and a write task reads the reports of
all tasks that ran on its machine. The files are in a folder of the executor's JVM, which Spark deletes at its end.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leasehold.core.model import ShardId

# Spark sets both for the tasks of a streaming query: the run of the query, and the number of the batch.
RUN_PROPERTY: Final = "spark.jobGroup.id"
BATCH_PROPERTY: Final = "streaming.sql.batchId"

_BLOCK_FOLDERS: Final = "SPARK_LOCAL_DIRS"
_RUN: Final = re.compile(r"[0-9A-Za-z-]{1,64}")


@dataclass(frozen=True, slots=True, order=True)
class RangeName:
    """The name of a pinned range with at least one row."""

    stream: str  # empty in a query of one stream
    shard: ShardId
    session: int
    rows: int
    first: str  # the position of its first row


@dataclass(frozen=True, slots=True)
class TaskName:
    """One attempt at a task of a batch. Attempt ids rise in the order in which Spark starts attempts."""

    run: str
    batch: int
    stage: int
    partition: int
    attempt: int


class DeliveryReports:
    """The reports of the tasks of one executor."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, task: TaskName, ranges: Iterable[RangeName]) -> None:
        """Add ranges to the report of a task. A report that cannot be written is no reason to fail the task."""
        with suppress(OSError):
            self._delete_older(task)
            folder = self._batch_folder(task)
            folder.mkdir(parents=True, exist_ok=True)
            lines = "".join(
                json.dumps([each.stream, each.shard, each.session, each.rows, each.first]) + "\n"
                for each in ranges
            )
            with (folder / f"{task.stage}.{task.partition}.{task.attempt}").open(
                "a", encoding="utf-8"
            ) as file:
                file.write(lines)

    def read(self, task: TaskName) -> frozenset[RangeName]:
        """The ranges that were delivered to a write task; after a shuffle, those of all tasks of its batch.

        Of several attempts at a task, the last one counts: the lease may have got another owner in between, and then
        the last attempt delivered less.
        """
        last: dict[tuple[str, str], tuple[int, Path]] = {}
        with suppress(OSError, ValueError):
            for file in self._batch_folder(task).iterdir():
                stage, partition, attempt = file.name.split(".")
                if int(attempt) == task.attempt:
                    return frozenset(_read_report(file))
                last[stage, partition] = max(last.get((stage, partition), (-1, file)), (int(attempt), file))
            return frozenset(name for _, file in last.values() for name in _read_report(file))
        return frozenset()

    def _batch_folder(self, task: TaskName) -> Path:
        return self._folder / task.run / str(task.batch)

    def _delete_older(self, task: TaskName) -> None:
        """Delete the reports of earlier batches, which are committed."""
        with suppress(FileNotFoundError):
            for folder in (self._folder / task.run).iterdir():
                if int(folder.name) < task.batch:
                    shutil.rmtree(folder, ignore_errors=True)


def open_delivery_reports() -> DeliveryReports | None:
    """The reports of the executor that started this process. None outside of Spark."""
    folder = os.environ.get(_BLOCK_FOLDERS, "").split(",")[0]
    return DeliveryReports(Path(folder) / "leasehold-reports") if folder else None


def task_name(
    run: str | None, batch: str | None, stage: int, partition: int, attempt: int
) -> TaskName | None:
    """Name a task. Returns None if its properties are not those of a streaming query.

    >>> task_name("4f1c-77", "3", 1, 2, 3)
    TaskName(run='4f1c-77', batch=3, stage=1, partition=2, attempt=3)
    >>> task_name("../..", "3", 1, 2, 3), task_name(None, None, 1, 2, 3)
    (None, None)
    """
    if run is None or batch is None or not _RUN.fullmatch(run) or not (batch.isascii() and batch.isdigit()):
        return None
    return TaskName(run, int(batch), stage, partition, attempt)


def _read_report(file: Path) -> Iterator[RangeName]:
    for line in file.read_text(encoding="utf-8").splitlines():
        stream, shard, session, rows, first = json.loads(line)
        yield RangeName(stream, ShardId(shard), session, rows, first)
