"""Which connections a server closes."""

import pytest

from leasehold.core.connection_limits import (
    CONNECTIONS_MAX,
    UNREAD_BYTES_MAX,
    ConnectionState,
    connections_max,
    connections_to_close,
)

READ = ConnectionState(None)


@pytest.mark.parametrize(
    ("descriptors", "expected"), [(20_000, CONNECTIONS_MAX), (200, 136), (70, 8), (10, 8)]
)
def test_some_descriptors_are_left_for_the_rest_of_the_process(descriptors: int, expected: int) -> None:
    assert connections_max(descriptors) == expected


def test_of_too_many_the_one_that_has_stalled_longest_is_closed() -> None:
    waiting = [ConnectionState(5.0), READ, ConnectionState(2.0), ConnectionState(9.0)]
    assert connections_to_close(waiting, 4) == []
    assert connections_to_close(waiting, 3) == [2]
    assert connections_to_close(waiting, 2) == [2, 0]


def test_an_event_stream_that_is_read_is_never_closed() -> None:
    assert connections_to_close([READ, READ, ConnectionState(9.0)], 2) == [2]
    assert connections_to_close([READ, READ, READ], 2) == []


def test_too_many_unread_bytes_close_those_that_have_not_read_for_longest() -> None:
    third = UNREAD_BYTES_MAX // 3 + 1
    unread = [ConnectionState(float(number), third) for number in range(4)]
    assert connections_to_close([*unread, ConnectionState(0.5)], 100) == [0, 1]


def test_a_single_long_response_is_not_closed() -> None:
    assert connections_to_close([ConnectionState(1.0, 2 * UNREAD_BYTES_MAX)], 100) == []
