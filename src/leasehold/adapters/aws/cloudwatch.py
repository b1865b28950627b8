"""Publishes metrics to CloudWatch in the background. `core.observing.metrics` decides which metrics an event has.

Every metric costs money at AWS, so nothing is published unless the settings choose a level. A failure of CloudWatch
never affects the member: data that cannot be sent is dropped and counted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from leasehold.adapters.aws.blocking import BlockingCalls
from leasehold.adapters.aws.error_translation import translate_error
from leasehold.adapters.metric_flushing import flush_in_background
from leasehold.core.events import Event, Observer, OperationFailed
from leasehold.core.observing.metrics import MetricWindow, StatisticSet
from leasehold.ports import Clock

FLUSH_EVERY_MS: Final = 10_000
DATA_PER_REQUEST_MAX: Final = 1_000
# The limit is 1 MB. The size below is an upper bound; the rest is for the envelope.
REQUEST_BYTES_MAX: Final = 900_000
DIMENSION_LENGTH_MAX: Final = 1_024


class CloudWatchMetrics:
    """An observer that publishes every ten seconds while `publish_in_background()` is entered.

    The client belongs to the caller. Give it short timeouts, because a stop waits for the last flush.
    """

    def __init__(
        self,
        client: Any,
        *,
        namespace: str,
        window: MetricWindow,
        clock: Clock,
        report: Observer,
        flush_every_ms: int = FLUSH_EVERY_MS,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._report = report
        self._flush_every_ms = flush_every_ms
        self._window = window
        self._calls = BlockingCalls("cloudwatch", threads=1)
        self.published = 0
        self.lost = 0

    def __call__(self, event: Event) -> None:
        """Process one event. Never blocks."""
        self._window.observe(event, self._clock.now_ms())

    @asynccontextmanager
    async def publish_in_background(self) -> AsyncIterator[None]:
        """Publish periodically until the block ends, then publish the rest."""
        try:
            async with flush_in_background(self.flush, self._clock, self._flush_every_ms):
                yield
        finally:
            self._calls.close()

    async def flush(self) -> None:
        """Publish the collected metrics. Never raises."""
        at = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        data = [_datum(each, at) for each in self._window.close(self._clock.now_ms())]
        for batch in split_into_requests(data):
            await self._put(batch)

    async def _put(self, batch: Sequence[Mapping[str, Any]]) -> None:
        try:
            await self._calls.run(self._client.put_metric_data, Namespace=self._namespace, MetricData=batch)
        except Exception as error:  # noqa: BLE001 - no failure of CloudWatch may affect the member
            self.lost += len(batch)
            self._report(OperationFailed("publish metrics", _describe_error(error)))
        else:
            self.published += len(batch)


def _describe_error(error: Exception) -> str:
    if isinstance(error, ClientError | BotoCoreError):
        return str(translate_error(error, "CloudWatch PutMetricData"))
    return type(error).__name__


def _datum(each: StatisticSet, at: datetime) -> Mapping[str, Any]:
    return {
        "MetricName": each.name,
        "Dimensions": [{"Name": name, "Value": _dimension_value(value)} for name, value in each.dimensions],
        "Timestamp": at,
        "Unit": each.unit.value,
        "StatisticValues": {
            "SampleCount": each.count,
            "Sum": each.total,
            "Minimum": each.minimum,
            "Maximum": each.maximum,
        },
    }


def _dimension_value(text: str) -> str:
    """The value in a form that CloudWatch accepts: a single invalid value would fail the whole request."""
    ascii_only = "".join(letter if " " <= letter <= "~" else "?" for letter in text[:DIMENSION_LENGTH_MAX])
    return ascii_only.strip().lstrip(":") or "-"


def split_into_requests(data: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Split into requests that CloudWatch accepts."""
    batch: list[Mapping[str, Any]] = []
    size_bytes = 0
    for datum in data:
        datum_bytes = _size_bytes_max(datum)
        if batch and (len(batch) == DATA_PER_REQUEST_MAX or size_bytes + datum_bytes > REQUEST_BYTES_MAX):
            yield batch
            batch, size_bytes = [], 0
        batch.append(datum)
        size_bytes += datum_bytes
    if batch:
        yield batch


def _size_bytes_max(datum: Mapping[str, Any]) -> int:
    """An upper bound of the size in the most verbose protocol, AWS Query: each field is
    `MetricData.member.N....=value`.
    """
    texts = [datum["MetricName"], *(text for each in datum["Dimensions"] for text in each.values())]
    fields = 7 + 2 * len(datum["Dimensions"])
    return fields * 80 + sum(3 * len(text) for text in texts)
