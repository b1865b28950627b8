"""What follows the end of a worker process."""

import pytest

from leasehold.core.supervision.restarts import (
    FAILED_STARTS_MAX,
    STABLE_AFTER_MS,
    WAIT_MS_MAX,
    Finished,
    GiveUp,
    ProcessEnd,
    RecentEnds,
    Restart,
    decide_after_end,
)

CRASH = ProcessEnd(-9, 1_000, has_connected=True)


def waits_after(end: ProcessEnd, times: int) -> list[int]:
    recent, waits = RecentEnds(), []
    for _ in range(times):
        decision = decide_after_end(end, recent, 0.999, is_stopping=False)
        assert isinstance(decision, Restart)
        recent = decision.recent
        waits.append(decision.wait_ms)
    return waits


def test_a_crashed_process_is_restarted_for_ever_with_growing_waits() -> None:
    """The waits double up to a limit."""
    waits = waits_after(CRASH, 50)
    assert waits[:3] == [999, 1998, 3996]
    assert max(waits) < WAIT_MS_MAX
    assert waits[-1] > 0.9 * WAIT_MS_MAX


def test_a_process_that_was_stable_is_restarted_soon() -> None:
    """Earlier crashes are forgotten after a minute without one."""
    stable = ProcessEnd(-11, STABLE_AFTER_MS, has_connected=True)
    assert decide_after_end(stable, RecentEnds(early=30), 0.5, is_stopping=False) == Restart(
        500, RecentEnds(early=1)
    )


def test_a_process_that_never_connects_is_given_up() -> None:
    """It has never worked, so no restart helps."""
    failed = ProcessEnd(1, 500, has_connected=False)
    assert len(waits_after(failed, FAILED_STARTS_MAX - 1)) == FAILED_STARTS_MAX - 1
    last = decide_after_end(failed, RecentEnds(4, FAILED_STARTS_MAX - 1), 0.5, is_stopping=False)
    assert last == GiveUp(
        "it ended 5 times before it had connected, at last with exit code 1: see its output"
    )


def test_a_connection_ends_the_row_of_failed_starts() -> None:
    """A service that was down for a while does not end the supervisor."""
    decision = decide_after_end(CRASH, RecentEnds(4, FAILED_STARTS_MAX - 1), 0.5, is_stopping=False)
    assert isinstance(decision, Restart)
    assert decision.recent.failed_starts == 0


@pytest.mark.parametrize("is_stopping", [False, True])
def test_an_explained_error_is_not_retried(is_stopping: bool) -> None:
    """The reason is the sentence of the process."""
    end = ProcessEnd(78, 900, has_connected=False, sentence="no region is set")
    assert decide_after_end(end, RecentEnds(), 0.5, is_stopping=is_stopping) == GiveUp("no region is set")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, Finished()),
        (-15, GiveUp("it did not stop cleanly (signal 15); its leases expire")),
        (-9, GiveUp("it did not stop cleanly (signal 9); its leases expire")),
        (1, GiveUp("it did not stop cleanly (exit code 1); its leases expire")),
    ],
)
def test_a_process_that_was_asked_to_stop_is_not_restarted(code: int, expected: object) -> None:
    """It had connected, so it should have released its leases."""
    end = ProcessEnd(code, 900, has_connected=True)
    assert decide_after_end(end, RecentEnds(), 0.5, is_stopping=True) == expected


def test_a_process_that_ends_by_itself_is_finished() -> None:
    """A handler may call `consumer.stop()`."""
    end = ProcessEnd(0, 900, has_connected=True)
    assert decide_after_end(end, RecentEnds(), 0.5, is_stopping=False) == Finished()


def test_sigterm_from_elsewhere_is_a_crash() -> None:
    """Only a supervisor that stops expects it."""
    end = ProcessEnd(-15, 900, has_connected=True)
    assert isinstance(decide_after_end(end, RecentEnds(), 0.5, is_stopping=False), Restart)


def test_a_process_that_has_not_connected_has_nothing_to_release() -> None:
    """SIGTERM may reach it before it can handle signals."""
    end = ProcessEnd(-15, 900, has_connected=False)
    assert decide_after_end(end, RecentEnds(), 0.5, is_stopping=True) == Finished()
