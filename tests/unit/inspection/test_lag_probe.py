"""Measuring the lag of a shard while workers read it."""

import asyncio
from collections.abc import Sequence

import pytest

from leasehold.core.model import Lease, LeaseKey, Shard, ShardId, StreamIdentifier, stream_identifier
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.errors import LeaseholdError, ServiceError, ThrottledError, UnavailableError
from leasehold.inspection import lag_probe
from leasehold.ports import Page, Stream


class FailingStream(Stream):
    """Raises each of these errors before it returns a page."""

    def __init__(self, failures: Sequence[LeaseholdError] = (), page: Page | None = None) -> None:
        self.failures = list(failures)
        self.page = page

    async def get_identifier(self) -> StreamIdentifier:
        return stream_identifier("000000000000", "orders", 1)

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        return ()

    async def get_iterator(self, shard: ShardId, start: IteratorStart) -> str:
        return f"{shard} {start.kind.name}"

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        assert limit == 1
        if self.failures:
            raise self.failures.pop(0)
        return self.page or Page((), iterator, millis_behind=1_234)

    async def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_retry_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_probe, "RETRY_S", 0)


def measure_lag(
    *failures: LeaseholdError, page: Page | None = None, checkpoint: Position = TRIM_HORIZON
) -> lag_probe.ShardLag:
    lease = Lease(key=LeaseKey("s-0"), shard_id=ShardId("s-0"), checkpoint=checkpoint)
    (measured,) = asyncio.run(lag_probe.measure_lags(FailingStream(failures, page), [lease]))
    return measured


@pytest.mark.parametrize("failure", [ThrottledError("too fast"), UnavailableError("no answer")])
def test_a_temporary_error_is_retried(failure: LeaseholdError) -> None:
    """Workers use up the five reads a second of a shard, so the command retries."""
    assert measure_lag(*[failure] * 4).millis_behind == 1_234


def test_a_lasting_error_is_reported_in_the_note() -> None:
    """One shard that cannot be read does not hide the others."""
    measured = measure_lag(*[ThrottledError("shard s-0: too fast")] * 5)
    assert (measured.millis_behind, measured.note) == (None, "shard s-0: too fast")


def test_an_error_that_a_retry_cannot_solve_ends_the_command() -> None:
    """Credentials that do not allow one shard allow none."""
    with pytest.raises(ServiceError, match="denied"):
        measure_lag(ServiceError("denied"))


@pytest.mark.parametrize("checkpoint", [TRIM_HORIZON, Position("7")])
def test_an_ended_shard_without_retained_records_is_reported(checkpoint: Position) -> None:
    """Its lag is 0, because there is nothing to read. The note says that records are lost."""
    measured = measure_lag(page=Page((), None, millis_behind=0), checkpoint=checkpoint)
    assert measured.millis_behind == 0
    assert "has no retained records" in measured.note


def test_an_empty_page_is_not_the_end_of_a_shard() -> None:
    """As long as there is a next iterator, no loss is reported."""
    assert measure_lag(checkpoint=Position("7")).note == ""
