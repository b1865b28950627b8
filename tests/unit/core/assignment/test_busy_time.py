"""The load of whoever works in batches: the share of the time in which one was under way."""

from leasehold.core.assignment.busy_time import BusyTime


def test_the_share_since_the_last_figure() -> None:
    """Stretches within the time, and those that reach into it or out of it, count as far as they lie in it."""
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


def test_a_batch_that_follows_at_once_leaves_no_gap() -> None:
    """A query that never waits is busy all the time."""
    busy = BusyTime()
    busy.percent(0)
    for at_ms in range(0, 1_000, 100):
        busy.end(at_ms)
        busy.begin(at_ms)
    assert busy.percent(1_000) == 100


def test_an_end_may_be_told_late_and_twice() -> None:
    """What is told after a figure was taken spares the next one; the end of an earlier stretch ends no later one."""
    busy = BusyTime()
    busy.percent(0)
    busy.begin(100)
    assert busy.percent(1_000) == 90
    busy.end(900)
    assert busy.percent(2_000) == 0
    busy.begin(2_500)
    busy.end(900)
    assert busy.percent(3_000) == 50


def test_no_time_has_no_share() -> None:
    """Two questions at one moment have no answer, and cost the next one nothing."""
    busy = BusyTime()
    busy.begin(0)
    busy.percent(1_000)
    assert busy.percent(1_000) is None
    assert busy.percent(2_000) == 100
