"""All errors of the package.

The docstring of each is its text in docs/reference/errors.md (`make reference`).

A lost race is not an error: the lease table returns it as a value (`fleet.table.lease_table.Contended`). A programming
error of this package is an AssertionError.
"""

from __future__ import annotations


class LeaseholdError(Exception):
    """The base of all errors that this package raises."""


class ConfigError(LeaseholdError, ValueError):
    """A setting, or a combination of settings, is invalid."""


class InvalidPositionError(LeaseholdError, ValueError):
    """A text is not a position in a shard: neither digits nor a sentinel, or far too long."""


class InvalidRangeError(LeaseholdError, ValueError):
    """A text or values are not a set of position ranges, or a range ends before its start."""


class InvalidRecordError(LeaseholdError, ValueError):
    """Kinesis would refuse a record: it is too large, or has a bad key."""


class MalformedAggregateError(LeaseholdError):
    """A KPL aggregate cannot be deaggregated, or only at an unreasonable cost."""

    def __init__(self, sequence_number: str, problem: str) -> None:
        super().__init__(f"Kinesis record {sequence_number} is an unreadable KPL aggregate: {problem}")
        self.sequence_number = sequence_number
        self.problem = problem


class MalformedRowError(LeaseholdError):
    """A row of the lease table is invalid."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"row {key!r} of the lease table is unreadable: {problem}")
        self.key = key
        self.problem = problem


class BlockedLeasesError(LeaseholdError):
    """Leases are not created, because rows of the lease table are invalid."""


class RecreatedStreamError(LeaseholdError):
    """The stream was deleted and created again, and its leases belong to the earlier one."""


class ShardListError(LeaseholdError):
    """The list of shards is incomplete or inconsistent. List again."""


class LeaseLostError(LeaseholdError):
    """Another member owns the shard. Stop working on it."""


class CheckpointRejectedError(LeaseholdError):
    """The checkpoint would move backwards, or past the end of the shard."""


class DataLossError(LeaseholdError):
    """Records were trimmed before they were read, and the settings say to stop."""


class ArchiveConflictError(LeaseholdError):
    """The archive has other records under the name of a range."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(
            f"object {key} exists already and {problem}: another program writes to this archive; use a separate "
            "prefix for each stream, and for each pipeline with different content"
        )
        self.key = key


class DamagedObjectError(LeaseholdError):
    """An object of the archive cannot be read."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(
            f"object {key} of the archive is damaged: {problem}; list all damaged objects with `leasehold archive "
            "verify`, and restore them from a copy"
        )
        self.key = key


class CompactionLockedError(LeaseholdError):
    """Another process compacts the archive."""

    def __init__(self) -> None:
        super().__init__(
            "another compaction of this archive runs, or has taken over: let it end, or try again in a minute"
        )


class BrokenRangeError(LeaseholdError):
    """Rows of a pinned range are missing, duplicated or out of order."""


class OffsetMismatchError(LeaseholdError):
    """A query's own log and the lease table disagree about which records are done."""


class QueryFailedError(LeaseholdError):
    """The Spark query of a pipeline has ended with an error. The message repeats it."""


class JvmEndedError(QueryFailedError):
    """The JVM of Spark has ended in the middle of the query."""

    def __init__(self, code: int) -> None:
        super().__init__(
            f"Spark's JVM ended unexpectedly with exit code {code} (-9: it was killed, perhaps for lack of memory): "
            "start again, the query continues where it stopped"
        )


class HandlerError(LeaseholdError):
    """User code fails in every attempt, and the settings say to stop rather than to skip.

    The error of the user code is the `__cause__`.
    """


class ProcessorEndedError(HandlerError):
    """The process of a record processor ended, hung or broke the MultiLang protocol. Its shard begins again."""


class ProcessesFailedError(LeaseholdError):
    """Worker processes of a supervisor ended, and a restart would not help."""


class ServiceError(LeaseholdError):
    """A service refused a request or did not respond."""


class ThrottledError(ServiceError):
    """The service throttled a request. Wait and retry."""


class NotFoundError(ServiceError):
    """The stream, shard, consumer, table or index does not exist."""


class InvalidArgumentError(ServiceError):
    """The service refused a value of a request, such as a sequence number that belongs to another shard."""


class InUseError(ServiceError):
    """A consumer exists already or is not ACTIVE yet, or another of its subscriptions to the shard is active."""


class AccessDeniedError(ServiceError):
    """The credentials are invalid, or their policy does not allow the request."""


class UnavailableError(ServiceError):
    """The service did not respond, or failed. A write may or may not have been applied."""


class IteratorExpiredError(ServiceError):
    """A shard iterator, which is valid for five minutes, has expired. Get a new one at the last position."""


def own_sentence(error: BaseException) -> str:
    """The message of an error that this package has raised, which contains no payload. Empty for any other error.

    >>> own_sentence(ConfigError("order 17"))  # raised by nobody
    ''
    """
    raised_at = error.__traceback__
    while raised_at is not None and raised_at.tb_next is not None:
        raised_at = raised_at.tb_next
    module = "" if raised_at is None else str(raised_at.tb_frame.f_globals.get("__name__"))
    is_own = isinstance(error, LeaseholdError) and module.startswith("leasehold.")
    return str(error) if is_own else ""
