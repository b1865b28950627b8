"""What a Python process of Spark's prints and reports when something goes wrong in it."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any, Final

from leasehold.errors import LeaseholdError

_DAEMON: Final = "pyspark.daemon"
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"


def main_module() -> str:
    """The name of the module that this process runs, such as `pyspark.daemon`."""
    specification = getattr(sys.modules["__main__"], "__spec__", None)
    return "" if specification is None else str(specification.name)


class SentenceFirst(ContextDecorator):
    """Lets Spark report an error of this package by its sentence, without the stack of Spark's Python process.

    Spark's own message, and then the stack of its JVM, would otherwise surround some twenty lines before the sentence.
    The process ends after the report, so the setting affects no other error.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, LeaseholdError) and main_module().startswith("pyspark."):
            os.environ[_HIDE_TRACEBACK] = "1"


class TracebackUnlessClosed:
    """The module `traceback`, except that it does not print that Spark has closed a connection."""

    def print_exc(self) -> None:
        """Print the current exception, unless Spark has closed the connection."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            traceback.print_exc()

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)


def hide_closed_connections() -> None:
    """Keep `BrokenPipeError` out of the log of normal runs, if this is a process of pyspark's daemon.

    When Spark has what it wants from a Python process, such as the plan of a read, it closes the connection. The
    process may still flush a last marker then. Through Unix sockets that fails at once, and the daemon prints it.
    """
    if main_module() == _DAEMON:
        daemon: Any = sys.modules["__main__"]
        daemon.traceback = TracebackUnlessClosed()
