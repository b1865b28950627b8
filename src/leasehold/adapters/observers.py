"""Several observers as one. An observer that fails is told about once and never hurts the member."""

from __future__ import annotations

import logging
from typing import Final

from leasehold.core.events import Event, Observer

LOGGER: Final = logging.getLogger("leasehold.observers")


def combine_observers(*observers: Observer) -> Observer:
    """An observer that passes every event to each of the others, in this order."""
    failed: set[int] = set()

    def observe(event: Event) -> None:
        for number, observer in enumerate(observers):
            try:
                observer(event)
            except Exception:  # observing is no reason to stop working
                level = logging.DEBUG if number in failed else logging.WARNING
                LOGGER.log(level, "observer %s failed on %s", observer, type(event).__name__, exc_info=True)
                failed.add(number)

    return observe
