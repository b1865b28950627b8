"""Combines several observers into one."""

from __future__ import annotations

import logging
from typing import Final

from leasehold.core.events import Event, Observer

LOGGER: Final = logging.getLogger("leasehold.observers")


def combine_observers(*observers: Observer) -> Observer:
    """An observer that passes every event to each of the others, in this order.

    An observer that raises is logged as a warning once. It never affects the member or the other observers.
    """
    failed: set[int] = set()

    def observe(event: Event) -> None:
        for number, observer in enumerate(observers):
            try:
                observer(event)
            except Exception:  # a failing observer must not stop the member
                level = logging.DEBUG if number in failed else logging.WARNING
                LOGGER.log(level, "observer %s failed on %s", observer, type(event).__name__, exc_info=True)
                failed.add(number)

    return observe
