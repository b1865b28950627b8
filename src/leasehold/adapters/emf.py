"""Writes metrics in CloudWatch's embedded metric format to stdout, one JSON document a line, every minute.

`core.observing.metrics` decides which metrics an event has, `core.observing.emf` makes documents of them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Final, TextIO

from leasehold.adapters.metric_flushing import flush_in_background
from leasehold.core.events import Event
from leasehold.core.observing.emf import emf_documents
from leasehold.core.observing.metrics import MetricWindow
from leasehold.ports import Clock

FLUSH_EVERY_MS: Final = 60_000  # the resolution of metrics; more lines would only cost more


class EmfMetrics:
    """An observer that writes every minute while `publish_in_background()` is entered."""

    def __init__(
        self, window: MetricWindow, namespace: str, clock: Clock, output: TextIO | None = None
    ) -> None:
        self._window = window
        self._namespace = namespace
        self._clock = clock
        self._output = output

    def __call__(self, event: Event) -> None:
        """Process one event."""
        self._window.observe(event, self._clock.now_ms())

    def publish_in_background(self) -> AbstractAsyncContextManager[None]:
        """Write periodically until the block ends, then write the rest."""
        return flush_in_background(self.flush, self._clock, FLUSH_EVERY_MS)

    async def flush(self) -> None:
        """Write the collected metrics, in a thread: stdout may be a pipe that nobody reads for a while."""
        sets = self._window.close(self._clock.now_ms())
        documents = emf_documents(sets, namespace=self._namespace, at_ms=self._clock.wall_ms())
        lines = [json.dumps(document, separators=(",", ":")) + "\n" for document in documents]
        await asyncio.to_thread(_write_lines, self._output or sys.stdout, lines)


def _write_lines(output: TextIO, lines: Iterable[str]) -> None:
    """Write each line in one call, so that lines of several processes on one pipe do not mix."""
    try:
        for line in lines:
            output.write(line)
            output.flush()
    except (OSError, ValueError):
        pass  # nobody reads stdout any more; metrics must not affect the member
