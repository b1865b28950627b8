"""The clock of the machine."""

import sys
import time

import pytest

from leasehold.adapters import system_clock


@pytest.mark.skipif(sys.platform != "linux", reason="on macOS the usual clock does not stop either")
def test_the_monotonic_clock_includes_the_time_in_which_the_machine_was_suspended() -> None:
    """Otherwise an owner that was suspended would take its lease for valid, although another member has it."""
    assert system_clock._MONOTONIC == time.CLOCK_BOOTTIME
    before_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    now_ms = system_clock.SystemClock().now_ms()
    assert before_ms <= now_ms <= time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
