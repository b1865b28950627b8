"""Which records of a shard may be handled now, if several are handled at one time."""

from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.records.keyed_window import KeyedWindow


def is_drained(window: KeyedWindow) -> bool:
    """Return the property. Type checkers expect it to stay as it was when it is asked directly."""
    return window.is_drained


def test_records_of_one_key_run_one_after_the_other() -> None:
    """Whatever the concurrency."""
    window = KeyedWindow(16)
    window.add("aaa")
    assert window.start_ready() == [0]
    assert window.start_ready() == []
    window.finish(0)
    assert window.start_ready() == [1]


def test_a_suspended_record_blocks_its_key_but_no_slot() -> None:
    """A record that waits for its next attempt lets other keys run."""
    window = KeyedWindow(1)
    window.add("aab")
    assert window.start_ready() == [0]
    window.suspend(0)
    assert window.start_ready() == [2]
    window.resume(0)
    assert window.start_ready() == []
    window.finish(2)
    assert window.start_ready() == [0]
    assert window.first_unfinished == 0


def test_a_suspended_record_may_be_finished() -> None:
    """A poison record is disposed of while it does not run."""
    window = KeyedWindow(1)
    window.add("ab")
    window.start_ready()
    window.suspend(0)
    window.finish(0)
    assert window.first_unfinished == 1


def test_everything_before_the_last_started_record_is_handled_before_a_release() -> None:
    """Otherwise records that are done would be repeated by the next owner."""
    window = KeyedWindow(2)
    window.add("aabc")
    assert window.start_ready() == [0, 2]
    window.finish(2)
    window.drain()
    assert window.start_ready() == []  # 3 was not started, and 1 waits for 0
    window.finish(0)
    assert not is_drained(window)
    assert window.start_ready() == [1]
    window.finish(1)
    assert is_drained(window)
    assert (window.first_unfinished, window.is_all_finished) == (3, False)


def test_a_record_that_is_given_up_ends_the_wait() -> None:
    """Only running records are waited for."""
    window = KeyedWindow(2)
    window.add("abc")
    window.start_ready()
    window.drain()
    window.suspend(0)
    window.give_up()
    assert not is_drained(window)
    window.finish(1)
    assert window.start_ready() == []
    assert is_drained(window)
    assert window.first_unfinished == 0


def test_a_window_without_records_is_drained_at_once() -> None:
    """As on an idle shard."""
    window = KeyedWindow(2)
    assert window.is_all_finished
    assert not is_drained(window)
    window.drain()
    assert is_drained(window)


@given(
    keys=st.lists(st.sampled_from("abcd"), max_size=40),
    concurrency=st.integers(1, 5),
    choices=st.lists(st.tuples(st.integers(0, 1_000), st.booleans()), max_size=200),
)
def test_order_and_limits_hold_in_any_order_of_events(
    keys: list[str], concurrency: int, choices: list[tuple[int, bool]]
) -> None:
    """Each key runs in order, at most `concurrency` run, and everything before the first unfinished one is finished."""
    window, finished = KeyedWindow(concurrency), set[int]()
    running, suspended = list[int](), list[int]()
    window.add(keys)

    def check() -> None:
        running.extend(window.start_ready())
        assert len(running) <= concurrency
        active = [keys[number] for number in running + suspended]
        assert len(active) == len(set(active))
        for number in running:
            assert all(each in finished for each in range(number) if keys[each] == keys[number])
        assert window.first_unfinished == next(
            (number for number in range(len(keys)) if number not in finished), len(keys)
        )

    check()
    for choice, is_failing in choices + [(0, False)] * 2 * len(keys):
        if suspended and choice % 3 == 0:
            window.resume(suspended.pop(0))
        elif running:
            number = running.pop(choice % len(running))
            if is_failing:
                window.suspend(number)
                suspended.append(number)
            else:
                window.finish(number)
                finished.add(number)
        check()
    for number in suspended:
        window.finish(number)
        finished.add(number)
    suspended.clear()
    check()
    while running:
        number = running.pop()
        window.finish(number)
        finished.add(number)
        check()
    assert window.is_all_finished


def test_a_record_whose_letter_is_being_stored_is_not_drained() -> None:
    """Another record was given up for the release of the lease. The letter must not be interrupted by it."""
    window = KeyedWindow(concurrency=2)
    window.add(["a", "b"])
    window.start_ready()
    window.suspend(0)
    window.run_again(0)
    window.drain()
    window.suspend(1)
    window.give_up()
    assert not window.is_drained
    window.suspend(0)
    window.finish(0)
    assert window.is_drained
