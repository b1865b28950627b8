"""The inputs of a record processor's methods. Each is made from a message of the MultiLang protocol, as a dict."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn, Protocol

from leasehold.kclpy.checkpoint_error import CheckpointError


class AnyCheckpointer(Protocol):
    """Stores how far a shard is done."""

    def checkpoint(self, sequence_number: str | None = None, sub_sequence_number: int | None = None) -> None:
        """Store a position; without arguments, all records that were delivered."""
        ...


class MessageDispatcher:
    """A message that calls one method of a record processor of version 3."""

    def __init__(self, json_dict: Mapping[str, Any]) -> None:
        self._action: str = json_dict["action"]

    @property
    def action(self) -> str:
        """The name of the action."""
        return self._action

    def dispatch(self, checkpointer: AnyCheckpointer, record_processor: Any) -> None:
        """Call the method for this message."""
        raise NotImplementedError


class InitializeInput(MessageDispatcher):
    """A shard and its start: after this record, or at a sentinel such as TRIM_HORIZON."""

    def __init__(self, json_dict: Mapping[str, Any]) -> None:
        super().__init__(json_dict)
        self._shard_id: str = json_dict["shardId"]
        self._sequence_number: str | None = json_dict["sequenceNumber"]
        self._sub_sequence_number: int = json_dict["subSequenceNumber"]

    @property
    def shard_id(self) -> str:
        """The shard."""
        return self._shard_id

    @property
    def sequence_number(self) -> str | None:
        """The checkpoint."""
        return self._sequence_number

    @property
    def sub_sequence_number(self) -> int:
        """The place within an aggregate."""
        return self._sub_sequence_number

    def dispatch(self, checkpointer: AnyCheckpointer, record_processor: Any) -> None:  # noqa: ARG002
        """Call `initialize`."""
        record_processor.initialize(self)


class _InputWithCheckpointer(MessageDispatcher):
    def __init__(self, json_dict: Mapping[str, Any]) -> None:
        super().__init__(json_dict)
        self._checkpointer: AnyCheckpointer | None = None

    @property
    def checkpointer(self) -> AnyCheckpointer | None:
        """The checkpointer of the shard."""
        return self._checkpointer


class ProcessRecordsInput(_InputWithCheckpointer):
    """Records in shard order."""

    def __init__(self, json_dict: Mapping[str, Any]) -> None:
        super().__init__(json_dict)
        self._records: list[Record] = json_dict["records"]
        self._millis_behind_latest: int | None = json_dict["millisBehindLatest"]

    @property
    def records(self) -> list[Record]:
        """The records."""
        return self._records

    @property
    def millis_behind_latest(self) -> int | None:
        """How far behind the tip of the shard the records were read."""
        return self._millis_behind_latest

    def dispatch(self, checkpointer: AnyCheckpointer, record_processor: Any) -> None:
        """Call `process_records`."""
        self._checkpointer = checkpointer
        record_processor.process_records(self)


class LeaseLostInput(MessageDispatcher):
    """The lease is lost: nothing can be stored."""

    def dispatch(self, checkpointer: AnyCheckpointer, record_processor: Any) -> None:  # noqa: ARG002
        """Call `lease_lost`."""
        record_processor.lease_lost(self)


class ShardEndedInput(_InputWithCheckpointer):
    """The shard has ended: the processor must checkpoint."""

    def dispatch(self, checkpointer: AnyCheckpointer, record_processor: Any) -> None:
        """Call `shard_ended`."""
        self._checkpointer = checkpointer
        record_processor.shard_ended(self)


class ShutdownRequestedInput(_InputWithCheckpointer):
    """The lease will be released: the last chance to checkpoint."""

    def dispatch(self, checkpointer: AnyCheckpointer, record_processor: Any) -> None:
        """Call `shutdown_requested`."""
        self._checkpointer = checkpointer
        record_processor.shutdown_requested(self)


class LeaseLostCheckpointer:
    """The checkpointer of a lost lease, for processors of version 1 and 2."""

    def checkpoint(
        self,
        sequence_number: str | None = None,  # noqa: ARG002
        sub_sequence_number: int | None = None,  # noqa: ARG002
    ) -> NoReturn:
        """Raise CheckpointError."""
        raise CheckpointError("Checkpointing is not allowed when the lease is lost")


class ShutdownInput:
    """The end of a processor of version 2: the reason is TERMINATE or ZOMBIE."""

    def __init__(self, reason: str, checkpointer: AnyCheckpointer) -> None:
        self._action = "shutdown"
        self._reason = reason
        self._checkpointer = checkpointer

    @staticmethod
    def zombie() -> ShutdownInput:
        """The lease is lost."""
        return ShutdownInput("ZOMBIE", LeaseLostCheckpointer())

    @staticmethod
    def terminate(checkpointer: AnyCheckpointer) -> ShutdownInput:
        """The shard has ended."""
        return ShutdownInput("TERMINATE", checkpointer)

    @property
    def action(self) -> str:
        """The name of the action."""
        return self._action

    @property
    def reason(self) -> str:
        """TERMINATE: the shard has ended. ZOMBIE: the lease is lost."""
        return self._reason

    @property
    def checkpointer(self) -> AnyCheckpointer:
        """The checkpointer of the shard."""
        return self._checkpointer


class CheckpointInput:
    """The reply to a checkpoint. Record processors do not see it."""

    def __init__(self, json_dict: Mapping[str, Any]) -> None:
        self.sequence_number: str | None = json_dict["sequenceNumber"]
        self.sub_sequence_number: int | None = json_dict["subSequenceNumber"]
        self.error: str | None = json_dict.get("error")


class Record:
    """One record, from a message of the protocol."""

    def __init__(self, json_dict: Mapping[str, Any]) -> None:
        self._json_dict = json_dict
        self._timestamp_millis = int(json_dict["approximateArrivalTimestamp"])

    @property
    def binary_data(self) -> bytes:
        """The data."""
        return base64.b64decode(self.data)

    @property
    def data(self) -> str:
        """The data in base64."""
        return str(self._json_dict["data"])

    @property
    def partition_key(self) -> str:
        """The partition key."""
        return str(self._json_dict["partitionKey"])

    @property
    def sequence_number(self) -> str:
        """The sequence number; parts of an aggregate have the same."""
        return str(self._json_dict["sequenceNumber"])

    @property
    def sub_sequence_number(self) -> int:
        """The place within an aggregate."""
        return int(self._json_dict["subSequenceNumber"])

    @property
    def timestamp_millis(self) -> int:
        """The arrival, in milliseconds since 1970."""
        return self._timestamp_millis

    @property
    def approximate_arrival_timestamp(self) -> datetime:
        """The arrival, in local time and without a zone, as in kclpy."""
        return datetime.fromtimestamp(self._timestamp_millis / 1000.0)  # noqa: DTZ006

    def get(self, field: str) -> Any:
        """Return a member of the message by its name there."""
        return self._json_dict[field]

    def __getitem__(self, field: str) -> Any:
        return self.get(field)
