"""A process that reads records collects garbage rarely."""

import gc
from collections.abc import Iterator

import pytest

from leasehold.garbage_collection import leave_out_loaded_objects, tune_garbage_collection


@pytest.fixture(autouse=True)
def settings_of_this_process() -> Iterator[None]:
    """The settings after the test are those before it."""
    thresholds = gc.get_threshold()
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_the_threshold_is_raised_and_loaded_modules_are_left_out() -> None:
    """Records form no cycles, and modules do not become garbage."""
    gc.set_threshold(700, 10, 10)
    tune_garbage_collection()
    assert gc.get_threshold()[0] == 50_000
    assert gc.get_freeze_count() > 0


@pytest.mark.parametrize("threshold", [0, 80_000])
def test_a_program_that_chose_its_own_threshold_keeps_it(threshold: int) -> None:
    """Zero disables the collector, too."""
    gc.set_threshold(threshold, 10, 10)
    tune_garbage_collection()
    assert gc.get_threshold()[0] == threshold


def test_a_disabled_collector_stays_as_it_is() -> None:
    """The program may enable it again, with its own threshold."""
    gc.disable()
    before = gc.get_threshold()
    tune_garbage_collection()
    assert gc.get_threshold() == before


def test_objects_that_were_loaded_later_can_be_left_out_too() -> None:
    """Garbage is collected before."""
    tune_garbage_collection()
    before = gc.get_freeze_count()
    kept: list[list[object]] = [[] for _ in range(1_000)]
    garbage: list[object] = []
    garbage.append(garbage)
    del garbage
    leave_out_loaded_objects()
    assert gc.get_freeze_count() >= before + len(kept)
    assert gc.collect() == 0
