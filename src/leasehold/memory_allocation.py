"""Settings of the C library's memory allocator for a process that reads large pages."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

# The parameters of glibc's mallopt.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
# As much as the slices of a task, or the pages in a worker's buffer, take by default.
KEPT_BYTES: Final = 64 * 1024 * 1024


def keep_freed_memory() -> None:
    """Let the allocator keep up to 64 MB of freed memory for the next pages.

    Otherwise it returns the memory of each large page to the system, and the system clears each byte before it is
    used again: a sixth of a reader's processor time. Does nothing where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    # Every glibc accepts 32 MB, and the largest page has less.
    mallopt(_MMAP_THRESHOLD, KEPT_BYTES // 2)
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
