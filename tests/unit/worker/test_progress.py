"""What is done ends before the first portion that is not finished, whatever the order in which they are."""

from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.position import LATEST, TRIM_HORIZON, Position
from leasehold.worker.checkpointing.progress import Progress


@given(st.permutations(range(12)))
def test_nothing_is_done_past_an_unfinished_portion(order: list[int]) -> None:
    """After every finish, what may be stored is exactly the finished prefix."""
    progress = Progress(TRIM_HORIZON)
    portions = [progress.begin(Position(str(number)), 1) for number in range(12)]
    finished: set[int] = set()
    for number in order:
        progress.finish(portions[number])
        finished.add(number)
        prefix = next((each for each in range(12) if each not in finished), 12)
        expected = Position(str(prefix - 1)) if prefix else None
        assert progress.position_to_store() == expected
        assert progress.is_all_done == (len(finished) == 12)


def test_progress_within_the_first_portion_counts() -> None:
    """A part of the first open portion is done; a part of a later one says nothing yet."""
    progress = Progress(LATEST)
    first, second = progress.begin(Position("10"), 5), progress.begin(Position("20"), 5)
    progress.advance(second, Position("15"))
    assert progress.position_to_store() is None
    progress.advance(first, Position("7"))
    assert progress.position_to_store() == Position("7")
    progress.finish(first)
    assert progress.position_to_store() == Position("15")


def test_what_is_stored_is_not_stored_again() -> None:
    """Once the table knows it, there is nothing to store until something else is done."""
    progress = Progress(TRIM_HORIZON)
    progress.finish(progress.begin(Position("10"), 3))
    assert progress.records_since_stored == 3
    progress.mark_stored(Position("10"))
    assert progress.position_to_store() is None
    assert progress.records_since_stored == 0


def test_a_prepared_checkpoint_is_not_cleared_by_one_before_it() -> None:
    """While something is prepared, only a position at or beyond it may be stored by itself."""
    progress = Progress(Position("5"), prepared=Position("20"))
    first, second = progress.begin(Position("10"), 1), progress.begin(Position("20"), 1)
    progress.finish(first)
    assert progress.position_to_store() is None
    progress.finish(second)
    assert progress.position_to_store() == Position("20")


def test_what_a_program_declares_done_is_done_with_all_before_it() -> None:
    """By hand, a position covers every portion up to it, finished or not."""
    progress = Progress(TRIM_HORIZON)
    progress.begin(Position("10"), 1)
    second = progress.begin(Position("20"), 1)
    progress.declare_done(Position("15"))
    assert progress.position_to_store() == Position("15")
    assert not progress.is_all_done
    progress.finish(second)
    assert progress.is_all_done


def test_finishing_twice_is_as_good_as_once() -> None:
    """A program may say it twice."""
    progress = Progress(TRIM_HORIZON)
    portion = progress.begin(Position("10"), 4)
    progress.finish(portion)
    progress.finish(portion)
    assert progress.records_since_stored == 4
