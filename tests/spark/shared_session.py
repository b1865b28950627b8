"""One Spark session for the tests of a module. Queries end with their test.

The session is replaced if a test ends its JVM, or if a timeout interrupts a call to it: the response stays unread, and
each later call receives the response of another one.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from leasehold.spark.pipeline.session import spark_session

Prepare = Callable[[Any], None]


class SharedSession:
    """Starts a session when a test needs one and none is alive."""

    def __init__(self, name: str, settings: dict[str, str], prepare: Prepare) -> None:
        self._name = name
        self._settings = settings
        self._prepare = prepare
        self._opened = ExitStack()
        self._session: Any = None

    def get(self) -> Any:
        """Return a session that works."""
        if self._session is not None and not _is_alive(self._session):
            self.close()
        if self._session is None:
            self._session = self._opened.enter_context(spark_session(self._name, self._settings))
            self._prepare(self._session)
        return self._session

    def stop_queries(self) -> None:
        """Stop the queries that a failed test left running: they would disturb the next tests."""
        if self._session is not None and _is_alive(self._session):
            for query in self._session.streams.active:
                query.stop()

    def close(self) -> None:
        """End the session and its JVM."""
        with suppress(Exception):  # whatever a dead JVM, or one with an unread response, causes
            self._opened.close()
        self._session = None


@contextmanager
def shared_session(name: str, settings: dict[str, str], prepare: Prepare) -> Iterator[SharedSession]:
    """Open a shared session for the tests of a module."""
    shared = SharedSession(name, settings, prepare)
    try:
        yield shared
    finally:
        shared.close()


def _is_alive(session: SparkSession) -> bool:
    question = str(uuid4())
    try:
        context = session.sparkContext
        assert context._jvm is not None
        answer = context._jvm.java.util.UUID.fromString(question).toString()
        return bool(answer == question and not context._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001 - whatever a dead JVM causes
        return False
