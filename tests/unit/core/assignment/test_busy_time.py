"""The share of time in which work was under way."""

from leasehold.core.assignment.busy_time import BusyTime


def test_the_share_since_the_last_call() -> None:
    """A period counts with the part that lies between the two calls."""
    busy = BusyTime()
    assert busy.percent(1_000) is None
    busy.begin(1_200)
    busy.end(1_400)
    busy.begin(1_900)
    assert busy.percent(2_000) == 30
    assert busy.percent(3_000) == 100
    busy.end(3_250)
    assert busy.percent(4_000) == 25
    assert busy.percent(5_000) == 0


def test_periods_without_a_pause_are_full_load() -> None:
    """A query that never waits has a load of 100 percent."""
    busy = BusyTime()
    busy.percent(0)
    for at_ms in range(0, 1_000, 100):
        busy.end(at_ms)
        busy.begin(at_ms)
    assert busy.percent(1_000) == 100


def test_an_end_may_be_reported_late_and_twice() -> None:
    """A late end reduces the next value. The end of an earlier period does not end a later one."""
    busy = BusyTime()
    busy.percent(0)
    busy.begin(100)
    assert busy.percent(1_000) == 90
    busy.end(900)
    assert busy.percent(2_000) == 0
    busy.begin(2_500)
    busy.end(900)
    assert busy.percent(3_000) == 50


def test_without_elapsed_time_there_is_no_share() -> None:
    """The second call at the same time returns None and does not change the next value."""
    busy = BusyTime()
    busy.begin(0)
    busy.percent(1_000)
    assert busy.percent(1_000) is None
    assert busy.percent(2_000) == 100
