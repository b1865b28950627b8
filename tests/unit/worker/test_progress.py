"""The done position ends before the first unfinished batch, in whatever order batches finish."""

from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.model import Pin
from leasehold.core.position import LATEST, TRIM_HORIZON, Position
from leasehold.worker.checkpointing.progress import Progress


@given(st.permutations(range(12)))
def test_the_done_position_never_passes_an_unfinished_batch(order: list[int]) -> None:
    """After every finish, the position to store is the end of the finished prefix."""
    progress = Progress(TRIM_HORIZON)
    batches = [progress.begin(Position(str(number)), 1) for number in range(12)]
    finished: set[int] = set()
    for number in order:
        progress.finish(batches[number])
        finished.add(number)
        prefix = next((each for each in range(12) if each not in finished), 12)
        expected = Position(str(prefix - 1)) if prefix else None
        assert progress.position_to_store() == expected
        assert progress.is_all_done == (len(finished) == 12)


def test_progress_within_the_first_batch_counts() -> None:
    """A part of the first unfinished batch counts as done; a part of a later one does not."""
    progress = Progress(LATEST)
    first, second = progress.begin(Position("10"), 5), progress.begin(Position("20"), 5)
    progress.advance(second, Position("15"))
    assert progress.position_to_store() is None
    progress.advance(first, Position("7"))
    assert progress.position_to_store() == Position("7")
    progress.finish(first)
    assert progress.position_to_store() == Position("15")


def test_a_stored_position_is_not_stored_again() -> None:
    """There is nothing to store until more records are done."""
    progress = Progress(TRIM_HORIZON)
    progress.finish(progress.begin(Position("10"), 3))
    assert progress.delivered == Position("10")
    assert progress.records_since_stored == 3
    progress.mark_stored(Position("10"))
    assert progress.position_to_store() is None
    assert progress.records_since_stored == 0


def test_a_prepared_checkpoint_is_not_cleared_by_an_earlier_one() -> None:
    """Until it is committed, only its end or a later position may be stored."""
    progress = Progress(Position("5"), prepared=Pin(Position("20")))
    first, second = progress.begin(Position("10"), 1), progress.begin(Position("20"), 1)
    progress.finish(first)
    assert progress.position_to_store() is None
    progress.finish(second)
    assert progress.position_to_store() == Position("20")


def test_a_declared_position_covers_all_batches_before_it() -> None:
    """A manual checkpoint covers every batch up to it, finished or not."""
    progress = Progress(TRIM_HORIZON)
    progress.begin(Position("10"), 1)
    second = progress.begin(Position("20"), 1)
    progress.declare_done(Position("15"))
    assert progress.position_to_store() == Position("15")
    assert not progress.is_all_done
    progress.finish(second)
    assert progress.is_all_done


def test_finishing_twice_has_no_further_effect() -> None:
    """A program may call `done` twice."""
    progress = Progress(TRIM_HORIZON)
    batch = progress.begin(Position("10"), 4)
    progress.finish(batch)
    progress.finish(batch)
    assert progress.records_since_stored == 4


def test_the_bytes_of_a_batch_are_freed_once() -> None:
    """Whichever call finishes the batch, and however often; also while an earlier batch is unfinished."""
    progress = Progress(TRIM_HORIZON)
    assert progress.pop_freed_bytes() == 0
    progress.begin(Position("10"), 1, 100)
    second, third = progress.begin(Position("20"), 1, 30), progress.begin(Position("30"), 1)
    progress.finish(second)
    progress.finish(second)
    assert progress.pop_freed_bytes() == 30
    progress.declare_done(Position("10"))
    assert progress.pop_freed_bytes() == 100
    progress.finish(third)
    assert progress.pop_freed_bytes() == 0
    assert progress.is_all_done


def test_a_declared_position_at_the_end_of_a_batch_finishes_it() -> None:
    """Nothing is left of the batch."""
    progress = Progress(TRIM_HORIZON)
    progress.begin(Position("10"), 1)
    progress.declare_done(Position("10"))
    assert progress.is_all_done


def test_the_done_position_never_moves_back() -> None:
    """Neither by an earlier declared position, nor by progress within a batch that lags behind it."""
    progress = Progress(TRIM_HORIZON)
    batch = progress.begin(Position("20"), 1)
    progress.declare_done(Position("15"))
    progress.declare_done(Position("3"))
    progress.advance(batch, Position("12"))
    assert progress.done == Position("15")


def test_a_stored_position_commits_the_prepared_checkpoint() -> None:
    """Records that were done after the stored position still count for the next checkpoint."""
    progress = Progress(Position("5"), prepared=Pin(Position("10")))
    for end in ("10", "20"):
        progress.finish(progress.begin(Position(end), 3))
    progress.mark_stored(Position("10"))
    assert (progress.stored, progress.prepared) == (Position("10"), None)
    assert progress.records_since_stored == 6
    assert progress.position_to_store() == Position("20")


def test_a_prepared_checkpoint_belongs_to_the_records_that_it_ends_with() -> None:
    """A longer batch contains it, and only the batch that begins at the stored position and ends there is the same."""
    pin = Pin(Position("10"), b"state")
    progress = Progress(Position("5"), prepared=pin)
    assert progress.prepared_for(Position("5"), Position("10")) == pin
    assert progress.prepared_within(Position("5"), Position("10")) == pin
    assert progress.prepared_within(Position("7"), Position("12")) == pin
    for start, end in (("5", "9"), ("7", "10"), ("5", "12")):
        assert progress.prepared_for(Position(start), Position(end)) is None
    for start, end in (("5", "9"), ("10", "12")):
        assert progress.prepared_within(Position(start), Position(end)) is None
    progress.finish(progress.begin(Position("10"), 1))
    progress.mark_stored(Position("10"))
    assert progress.prepared_within(Position("5"), Position("10")) is None


def test_a_prepared_checkpoint_may_end_inside_an_aggregate() -> None:
    """All user records of an aggregate have one sequence number. Those after the prepared one are not prepared."""
    pin = Pin(Position("10", 3), b"state")
    progress = Progress(Position("10", 1), prepared=pin)
    assert progress.prepared_within(Position("10", 1), Position("10", 3)) == pin
    assert progress.prepared_within(Position("10", 2), Position("10", 9)) == pin
    for start, end in ((0, 2), (3, 9)):
        assert progress.prepared_within(Position("10", start), Position("10", end)) is None
    assert progress.prepared_for(Position("10", 1), Position("10", 3)) == pin
    for start, end in ((0, 3), (1, 4), (2, 3)):
        assert progress.prepared_for(Position("10", start), Position("10", end)) is None
