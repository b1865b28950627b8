"""Every way to fail, on one screen.

LeaseholdError
+ ConfigError               a setting, or a pair of settings, cannot work (also a ValueError)
+ InvalidPositionError      neither digits nor a sentinel, or absurdly long (also a ValueError)
+ InvalidRangeError         no set of ranges, or a range that ends before it begins (also a ValueError)
+ InvalidRecordError        a record that Kinesis would refuse: too large, or a bad key (also a ValueError)
+ MalformedAggregateError   a KPL aggregate that cannot be taken apart, or only at an absurd price
+ MalformedRowError         a row of the lease table is not what it claims to be
+ ShardListError            the list of shards is incomplete or contradicts itself; list again
+ LeaseLostError            someone else owns the shard now; stop, nothing to repair
+ CheckpointRejectedError   the checkpoint would move backwards, or past the end of the shard
+ DataLossError             records were trimmed before they were read, and the settings say to stop
+ ArchiveConflictError      the archive holds other records under the name of a range
+ BrokenRangeError          rows of a pinned range are missing, doubled or out of order
+ OffsetMismatchError       a query's own log and the lease table tell different stories
+ QueryFailedError          the Spark query of a pipeline has ended with an error
+ HandlerError              user code keeps failing, and the settings say to stop rather than to skip
+ ServiceError              the other side said no, or said nothing
  + ThrottledError          too fast; wait and ask again
  + NotFoundError           the stream, shard, table or index does not exist
  + UnavailableError        no answer, or one that blames the server; a write may have happened
  + IteratorExpiredError    a shard iterator lives five minutes; ask for a new one
  + KinesisApiError            the modelled Kinesis says no, in the service's words (core.stream_model.refusal)

Losing a race is not an error: the lease table returns it as a value (see `fleet.lease_table.Contended`). A bug of ours
is an assertion.
"""

from __future__ import annotations


class LeaseholdError(Exception):
    """The root of everything that this package raises on purpose."""


class ConfigError(LeaseholdError, ValueError):
    """A setting, or a pair of settings, cannot work."""


class InvalidPositionError(LeaseholdError, ValueError):
    """Text that is no place in a shard."""


class InvalidRangeError(LeaseholdError, ValueError):
    """Text or values that are no set of ranges of positions."""


class InvalidRecordError(LeaseholdError, ValueError):
    """A record that Kinesis would refuse."""


class MalformedAggregateError(LeaseholdError):
    """A KPL aggregate that cannot be taken apart, or only at an absurd price."""

    def __init__(self, sequence_number: str, problem: str) -> None:
        super().__init__(f"Kinesis record {sequence_number} is an unreadable KPL aggregate: {problem}")
        self.sequence_number = sequence_number
        self.problem = problem


class MalformedRowError(LeaseholdError):
    """A row of the lease table is not what it claims to be."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"row {key!r} of the lease table is unreadable: {problem}")
        self.key = key
        self.problem = problem


class ShardListError(LeaseholdError):
    """The list of shards is incomplete or contradicts itself."""


class LeaseLostError(LeaseholdError):
    """Someone else owns the shard now."""


class CheckpointRejectedError(LeaseholdError):
    """The checkpoint would move backwards, or past the end of the shard."""


class DataLossError(LeaseholdError):
    """Records were trimmed before they were read, and the settings say to stop rather than to go on without them."""


class ArchiveConflictError(LeaseholdError):
    """The archive holds other records under the name of a range."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(
            f"object {key} is there already and {problem}: something else writes to this archive; give every stream, "
            "and every pipeline with another content, a prefix of its own"
        )
        self.key = key


class BrokenRangeError(LeaseholdError):
    """Rows of a pinned range are missing, doubled or out of order."""


class OffsetMismatchError(LeaseholdError):
    """A query's own log and the lease table tell different stories about what is done."""


class QueryFailedError(LeaseholdError):
    """The Spark query of a pipeline has ended with an error, which this one repeats."""


class HandlerError(LeaseholdError):
    """User code keeps failing, and the settings say to stop. Its own error is the cause of this one."""


class ServiceError(LeaseholdError):
    """The other side said no, or said nothing."""


class ThrottledError(ServiceError):
    """Too fast; wait and ask again."""


class NotFoundError(ServiceError):
    """The stream, shard, table or index does not exist."""


class UnavailableError(ServiceError):
    """No answer, or one that blames the server. A write may or may not have happened."""


class IteratorExpiredError(ServiceError):
    """The shard iterator is too old; ask for a new one at the last position."""
