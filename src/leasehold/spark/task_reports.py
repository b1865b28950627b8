"""The delivery reports of the task that runs in this process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from pyspark import TaskContext

from leasehold.spark.delivery_reports import (
    BATCH_PROPERTY,
    RUN_PROPERTY,
    DeliveryReports,
    RangeName,
    TaskName,
    open_delivery_reports,
    task_name,
)


@dataclass(frozen=True, slots=True)
class TaskReports:
    """Reads and writes reports under the name of a task. Without a name, nothing is reported."""

    reports: DeliveryReports | None = None
    name: TaskName | None = None

    @classmethod
    def of_this_task(cls) -> Self:
        """The reports for the current task of a streaming query."""
        context = TaskContext.get()
        if context is None:
            return cls()
        name = task_name(
            context.getLocalProperty(RUN_PROPERTY),
            context.getLocalProperty(BATCH_PROPERTY),
            context.stageId(),
            context.partitionId(),
            context.taskAttemptId(),
        )
        return cls(open_delivery_reports(), name)

    def write(self, ranges: Iterable[RangeName]) -> None:
        """Report ranges that the source has delivered in this task."""
        if self.reports is not None and self.name is not None:
            self.reports.write(self.name, ranges)

    def read(self) -> frozenset[RangeName]:
        """The ranges that the source has delivered to this write task."""
        if self.reports is None or self.name is None:
            return frozenset()
        return self.reports.read(self.name)
