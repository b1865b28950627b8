"""Whether a query may continue its log with other streams."""

import pytest

from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.exactly_once.query_offset import QueryOffset
from leasehold.core.exactly_once.query_streams import require_same_streams
from leasehold.core.model import StreamIdentifier
from leasehold.errors import ConfigError, RecreatedStreamError

ORDERS, RETURNS, AGAIN = map(StreamIdentifier, ("1:orders:17", "1:returns:17", "1:returns:18"))


def check(
    logged: set[StreamIdentifier], now: set[StreamIdentifier], *, starts_over: bool = False
) -> frozenset[StreamIdentifier]:
    offset = QueryOffset(GenerationId("00c0ffee", 3), {}, streams=frozenset(logged))
    return require_same_streams(offset, now, starts_over=starts_over)


def test_a_query_continues_with_the_same_streams_or_with_more() -> None:
    """The log says nothing about another stream, which begins as in a new query."""
    check(set(), set())
    check({ORDERS, RETURNS}, {ORDERS, RETURNS})
    check({ORDERS}, {ORDERS, RETURNS})


@pytest.mark.parametrize(
    ("logged", "now", "sentence"),
    [
        (set(), {ORDERS, RETURNS}, "a query of one stream, and the options name several"),
        ({ORDERS, RETURNS}, set(), "a query of several streams, and the options name a single one"),
        ({ORDERS, RETURNS}, {ORDERS}, "also reads 1:returns:17"),
    ],
)
def test_a_query_refuses_to_forget_a_stream(
    logged: set[StreamIdentifier], now: set[StreamIdentifier], sentence: str
) -> None:
    """Its unread records, and a batch that is not committed, would be lost without a word."""
    with pytest.raises(ConfigError, match=sentence) as error:
        check(logged, now, starts_over=True)
    assert "new checkpoint location" in str(error.value)


def test_from_several_streams_to_one_the_error_names_the_way_that_keeps_the_leases() -> None:
    """From one stream to several there is none."""
    keeps = "give it as streams instead of streamName, and give the query a new checkpoint location"
    with pytest.raises(ConfigError, match=keeps):
        check({ORDERS, RETURNS}, set())
    with pytest.raises(ConfigError) as error:
        check(set(), {ORDERS, RETURNS})
    assert keeps not in str(error.value)


def test_a_recreated_stream_is_another_stream() -> None:
    """It replaces the earlier one only if the options say so."""
    with pytest.raises(
        RecreatedStreamError, match="1:returns:17, and this stream was deleted and created again"
    ):
        check({ORDERS, RETURNS}, {ORDERS, AGAIN})
    assert check({ORDERS, RETURNS}, {ORDERS, AGAIN}, starts_over=True) == {AGAIN}
    assert not check({ORDERS}, {ORDERS, AGAIN}, starts_over=True), (
        "a stream that the log does not know is new"
    )
