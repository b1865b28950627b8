"""Settings of Python's cyclic garbage collector for a process that reads records."""

from __future__ import annotations

import gc
from typing import Final

# Records form no reference cycles. With the default threshold of 700 objects, the collector takes a third of a
# reader's time.
_THRESHOLDS: Final = (50_000, 20, 100)


def tune_garbage_collection() -> None:
    """Let the collector run rarely, and never look at what is loaded already, which does not become garbage.

    A program that has disabled the collector, or has set a higher threshold, keeps its settings.
    """
    if gc.isenabled() and 0 < gc.get_threshold()[0] < _THRESHOLDS[0]:
        leave_out_loaded_objects()
        gc.set_threshold(*_THRESHOLDS)


def leave_out_loaded_objects() -> None:
    """Let later collections ignore all objects that there are now. For objects that live as long as the process."""
    gc.collect()
    gc.freeze()
