"""Probing a shard beside the readers that use it."""

import asyncio
from collections.abc import Sequence

import pytest

from leasehold.cli import lag
from leasehold.core.leases.lease_view import view_leases
from leasehold.core.model import Lease, LeaseKey, Shard, ShardId, StreamIdentifier, stream_identifier
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.errors import LeaseholdError, ServiceError, ThrottledError, UnavailableError
from leasehold.ports import Page, Stream


class TroubledStream(Stream):
    """Fails with each of these before it answers."""

    def __init__(self, failures: Sequence[LeaseholdError] = (), page: Page | None = None) -> None:
        self.failures = list(failures)
        self.page = page

    async def identifier(self) -> StreamIdentifier:
        return stream_identifier("000000000000", "orders", 1)

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        return ()

    async def iterator(self, shard: ShardId, start: IteratorStart) -> str:
        return f"{shard} {start.kind.name}"

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        assert limit == 1
        if self.failures:
            raise self.failures.pop(0)
        return self.page or Page((), iterator, millis_behind=1_234)

    async def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "RETRY_S", 0)


def probe(
    *failures: LeaseholdError, page: Page | None = None, checkpoint: Position = TRIM_HORIZON
) -> lag.ShardLag:
    lease = Lease(key=LeaseKey("s-0"), shard_id=ShardId("s-0"), checkpoint=checkpoint)
    (measured,) = asyncio.run(lag.measure_lags(TroubledStream(failures, page), view_leases([lease])))
    return measured


@pytest.mark.parametrize("failure", [ThrottledError("too fast"), UnavailableError("no answer")])
def test_trouble_that_passes_is_waited_out(failure: LeaseholdError) -> None:
    """Live readers use up a shard's five reads a second; the probe waits for its turn."""
    assert probe(*[failure] * 4).millis_behind == 1_234


def test_trouble_that_stays_is_told_beside_the_shard() -> None:
    """One shard that cannot be asked does not hide the others."""
    measured = probe(*[ThrottledError("shard s-0: too fast")] * 5)
    assert (measured.millis_behind, measured.note) == (None, "shard s-0: too fast")


def test_trouble_that_waiting_does_not_cure_ends_the_command() -> None:
    """What the credentials do not allow for one shard they allow for none."""
    with pytest.raises(ServiceError, match="denied"):
        probe(ServiceError("denied"))


@pytest.mark.parametrize("checkpoint", [TRIM_HORIZON, Position("7")])
def test_an_ended_shard_of_which_nothing_is_left_is_told(checkpoint: Position) -> None:
    """It is 0 behind, since there is nothing to read; that this is no good news is said beside it."""
    measured = probe(page=Page((), None, millis_behind=0), checkpoint=checkpoint)
    assert measured.millis_behind == 0
    assert "nothing of it is retained" in measured.note


def test_an_empty_answer_is_not_the_end_of_a_shard() -> None:
    """While there is an iterator to go on with, nothing is said to be lost."""
    assert probe(checkpoint=Position("7")).note == ""
