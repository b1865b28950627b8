"""Freed memory is kept for the next large page."""

import ctypes
import platform
import subprocess
import sys

import pytest

from leasehold.memory_allocation import keep_freed_memory

PAGES_OF_ONE_BODY = 20 * 1024 * 1024 // 4096
# Prints how many pages of memory the system cleared for ten bodies of 20 MB, one after the other.
SCRIPT = """
import resource, sys
from leasehold.memory_allocation import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for number in range(12):
    if number == 2:
        before = faults()
    body = b"x" * 20 * 1024 * 1024
    more = b"y" * 20 * 1024 * 1024
    del body, more
print(faults() - before)
"""


def cleared_pages(mode: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=True, timeout=200
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_memory_of_a_page_is_used_again() -> None:
    """The system clears it once, not for each page."""
    assert cleared_pages("keep") < PAGES_OF_ONE_BODY
    assert cleared_pages("default") > 2 * PAGES_OF_ONE_BODY


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no such function."""

    def fail(_name: object) -> object:
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", fail)
    keep_freed_memory()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    keep_freed_memory()
