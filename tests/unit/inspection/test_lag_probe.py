"""Measuring the lag of a shard while workers read it."""

import asyncio
from collections.abc import Sequence

import pytest

from leasehold.adapters.system_clock import SystemClock
from leasehold.core.model import Lease, LeaseKey, Shard, ShardId, StreamIdentifier, stream_identifier
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.record import Record
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.errors import LeaseholdError, ServiceError, ThrottledError, UnavailableError
from leasehold.fleet.reading.checkpoint_probe import ShardLag
from leasehold.inspection import lag_probe
from leasehold.ports import Page, Stream


class FailingStream(Stream):
    """Raises each of these errors before it returns a page."""

    def __init__(self, failures: Sequence[LeaseholdError] = (), pages: Sequence[Page] = ()) -> None:
        self.failures = list(failures)
        self.pages = list(pages)

    async def get_identifier(self) -> StreamIdentifier:
        return stream_identifier("000000000000", "orders", 1)

    async def get_retention_ms(self) -> int:
        return 24 * 3_600_000

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        return ()

    async def get_iterator(self, shard: ShardId, start: IteratorStart) -> str:
        return f"{shard} {start.kind.name}"

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        assert limit == 1
        if self.failures:
            raise self.failures.pop(0)
        return self.pages.pop(0) if self.pages else Page((), iterator, millis_behind=1_234)

    async def close(self) -> None:
        pass


class FixedClock(SystemClock):
    """It is a million milliseconds after the epoch."""

    def wall_ms(self) -> int:
        return 1_000_000


@pytest.fixture(autouse=True)
def no_retry_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_probe, "RETRY_S", 0)


def measure_lag(
    *failures: LeaseholdError, pages: Sequence[Page] = (), checkpoint: Position = TRIM_HORIZON
) -> ShardLag:
    lease = Lease(key=LeaseKey("s-0"), shard_id=ShardId("s-0"), checkpoint=checkpoint)
    (measured,) = asyncio.run(lag_probe.measure_lags(FailingStream(failures, pages), [lease], FixedClock()))
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
    measured = measure_lag(pages=[Page((), None, millis_behind=0)], checkpoint=checkpoint)
    assert measured.millis_behind == 0
    assert "has no retained records" in measured.note


def test_an_empty_page_is_not_the_end_of_a_shard() -> None:
    """As long as there is a next iterator, no loss is reported."""
    assert measure_lag(checkpoint=Position("7")).note == ""


@pytest.mark.parametrize(
    ("checkpoint", "arrivals", "millis_behind", "lag"),
    [
        (Position("7"), {7: 100_000}, 0, 0),  # the record at the checkpoint is done
        (Position("7"), {7: 100_000, 8: 990_000}, 900_000, 10_000),  # one record after a time without any
        (Position("7"), {8: 400_000, 9: 500_000}, 600_000, 600_000),  # trimmed
        (TRIM_HORIZON, {7: 400_000}, 0, 600_000),  # the only record of the shard is not done
        (TRIM_HORIZON, {7: 400_000, 8: 500_000}, 600_000, 600_000),
        (TRIM_HORIZON, {7: 1_900_000}, 0, 0),  # the clock of the server is ahead
    ],
)
def test_the_lag_is_that_of_the_first_record_that_is_not_done(
    checkpoint: Position, arrivals: dict[int, int], millis_behind: int, lag: int
) -> None:
    """Kinesis says how far the last record of a page is behind the tip, and 0 for the last record of the shard."""
    records = [Record(b"x", "k", str(number), at_ms) for number, at_ms in arrivals.items()]
    pages = [Page((record,), "next", millis_behind=millis_behind) for record in records]
    assert measure_lag(pages=pages, checkpoint=checkpoint).millis_behind == lag


@pytest.mark.parametrize(("millis_behind", "is_emptied"), [(0, True), (1_234, False), (None, False)])
def test_an_empty_page_shows_a_trimmed_checkpoint_only_at_the_tip(
    millis_behind: int | None, is_emptied: bool
) -> None:
    """Kinesis returns empty pages also before records."""
    page = Page((), "next", millis_behind=millis_behind)
    measured = measure_lag(pages=[page], checkpoint=Position("17"))
    assert (measured.is_emptied, "no later record is retained" in measured.note) == (is_emptied, is_emptied)
    assert not measure_lag(pages=[page]).is_emptied
