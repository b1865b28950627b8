"""The checkpoint location of a query as Spark writes it: a log of offsets and a log of commits.

An entry is created once. A second driver that creates the same entry gets an error, as from Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leasehold.core.exactly_once.query_offset import INITIAL_OFFSET


class ConcurrentRunError(Exception):
    """Another driver has written this entry of the log."""


@dataclass(slots=True)
class CheckpointLocation:
    """The logs of one query. The offsets are text, by batch id."""

    offsets: dict[int, str] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)

    @property
    def last_batch(self) -> int:
        """The id of the last logged batch; -1 if none is logged."""
        return max(self.offsets, default=-1)

    def offset(self, batch: int) -> Mapping[str, Any]:
        """Return the logged end of a batch; the initial offset before the first batch."""
        if batch not in self.offsets:
            return dict(INITIAL_OFFSET)
        offset: Mapping[str, Any] = json.loads(self.offsets[batch])
        return offset

    def log_offset(self, batch: int, offset: Mapping[str, Any]) -> None:
        """Log the end of a batch before the batch runs."""
        if batch in self.offsets:
            raise ConcurrentRunError(f"offsets/{batch} exists")
        self.offsets[batch] = json.dumps(offset)

    def log_commit(self, batch: int) -> None:
        """Log that a batch is committed."""
        if batch in self.commits:
            raise ConcurrentRunError(f"commits/{batch} exists")
        self.commits.add(batch)

    def copy(self) -> CheckpointLocation:
        """Return a copy, as a backup makes one."""
        return CheckpointLocation(dict(self.offsets), set(self.commits))
