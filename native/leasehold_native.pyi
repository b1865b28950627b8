"""GetRecords responses, SubscribeToShard events and KPL aggregates as Arrow columns. See docs/native.md."""

from typing import Any, Literal, Protocol, TypeVar

__version__: str

_Tuple = TypeVar("_Tuple", bound=tuple[Any, ...])

class MalformedError(ValueError):
    """A response or an event is invalid. The text names the field, never its content."""

class UnreadableAggregateError(ValueError):
    """An aggregate cannot be split. `args`: the sequence number of its Kinesis record, and the problem."""

class _ArrowBatch(Protocol):
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...

class NativeBatch:
    """Columns of records. `pyarrow.record_batch(batch)` makes an Arrow batch of them, without copying."""

    def __len__(self) -> int: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...
    def __arrow_c_schema__(self) -> object: ...

class NativePage:
    """The content of a response or an event."""

    @property
    def next(self) -> str | None:
        """NextShardIterator, or ContinuationSequenceNumber."""
    @property
    def millis_behind(self) -> int | None: ...
    @property
    def children(self) -> list[tuple[str, list[str], int, int]]:
        """Id, parents, first and last hash key of each child shard."""
    @property
    def records(self) -> NativeBatch:
        """One row a Kinesis record."""
    def to_columns(self) -> list[list[Any]]:
        """The columns of `records`, each as a list. For a few records, this takes less time than Arrow's interface."""

def decode_page(body: bytes, cbor: bool = False) -> NativePage:
    """The content of the body of a GetRecords response."""

def decode_event(payload: bytes, cbor: bool = False) -> NativePage:
    """The content of the payload of a SubscribeToShardEvent."""

def deaggregate(
    batch: _ArrowBatch,
    range_start: int | None = None,
    range_end: int | None = None,
    *,
    out_of_range: Literal["drop-aggregate", "drop-record", "keep"] = "drop-aggregate",
    fail_unreadable: bool = False,
    user_records_max: int = 200_000,
    expanded_bytes_max: int = 134_217_728,
) -> tuple[NativeBatch, list[tuple[str, str, int]]]:
    """The user records in the Kinesis records of `batch`, and the incidents: sequence number, outcome, dropped."""

def to_records(batch: _ArrowBatch, class_: type[_Tuple], /) -> list[_Tuple]:
    """The rows of a batch of user records, each as `tuple.__new__(class_, row)`."""
