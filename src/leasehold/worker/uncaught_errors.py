"""Reports an error that a program with a worker does not catch: in one sentence, if the sentence says it all."""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from leasehold.errors import HandlerError, LeaseholdError

_LOGGER = logging.getLogger("leasehold.worker")


def report_in_one_sentence() -> None:
    """Let Python report uncaught errors of this package without a traceback, unless the program has its own hook.

    A missing region, wrong credentials or an unknown stream are no errors in the program, so its stack explains
    nothing. With the logger `leasehold.worker` at DEBUG, and for an error of the handler, the traceback is shown.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _report


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    is_explained = isinstance(error, LeaseholdError) and not isinstance(error, HandlerError)
    if is_explained and not _LOGGER.isEnabledFor(logging.DEBUG):
        sys.stderr.write(f"Error: {error}\n")
    else:
        sys.__excepthook__(kind, error, trace)
