"""A record processor of kclpy as an object of this process: no Java, no child process, no JSON, no base64.

It behaves as in kclpy. What it raises is logged, and the records count as done, unless `restart_failed` says that the
shard begins again from its checkpoint. SystemExit ends the processor, as it would end its process.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import pybase64

from leasehold.core.multilang.checkpoint_rules import SHUTDOWN
from leasehold.core.multilang.messages import (
    Action,
    ActionName,
    Initialize,
    LeaseLost,
    ProcessRecords,
    checkpoint_request,
)
from leasehold.core.record import UserRecord
from leasehold.errors import LeaseLostError, ProcessorEndedError
from leasehold.kclpy.alias import loaded_package
from leasehold.kclpy.kcl import adapt
from leasehold.multilang.processor_client import ExecuteCheckpoint, ProcessorClient, ProcessorClients
from leasehold.worker.delivery.served_shard import ServedShard
from leasehold.worker.user_code.engine_calls import EngineCalls
from leasehold.worker.user_code.handler_runners import Outcome, Raised, traceback_without_message

LOGGER: Final = logging.getLogger("leasehold.multilang")

_INPUTS: Final = {
    ActionName.INITIALIZE: "InitializeInput",
    ActionName.PROCESS_RECORDS: "ProcessRecordsInput",
    ActionName.LEASE_LOST: "LeaseLostInput",
    ActionName.SHARD_ENDED: "ShardEndedInput",
    ActionName.SHUTDOWN_REQUESTED: "ShutdownRequestedInput",
}


class Record:
    """A record with the attributes of kclpy's. Its data is encoded in base64 only if that is asked for."""

    __slots__ = ("_record",)

    def __init__(self, record: UserRecord) -> None:
        self._record = record

    @property
    def binary_data(self) -> bytes:
        """The data."""
        return self._record.data

    @property
    def data(self) -> str:
        """The data in base64."""
        return pybase64.b64encode_as_string(self._record.data)

    @property
    def partition_key(self) -> str:
        """The partition key."""
        return self._record.partition_key

    @property
    def sequence_number(self) -> str:
        """The sequence number; parts of an aggregate have the same."""
        return self._record.sequence_number

    @property
    def sub_sequence_number(self) -> int:
        """The place within an aggregate."""
        return self._record.sub_sequence_number

    @property
    def timestamp_millis(self) -> int:
        """The arrival, in milliseconds since 1970."""
        return self._record.arrival_ms or 0

    @property
    def approximate_arrival_timestamp(self) -> datetime:
        """The arrival, in local time and without a zone, as in kclpy."""
        return datetime.fromtimestamp(self.timestamp_millis / 1000.0)  # noqa: DTZ006

    def get(self, field: str) -> object:
        """Return a member by its name in the MultiLang protocol."""
        members: Mapping[str, Callable[[], object]] = {
            "data": lambda: self.data,
            "partitionKey": lambda: self.partition_key,
            "sequenceNumber": lambda: self.sequence_number,
            "subSequenceNumber": lambda: self.sub_sequence_number,
            "approximateArrivalTimestamp": lambda: self.timestamp_millis,
            "action": lambda: "record",
        }
        return members[field]()

    def __getitem__(self, field: str) -> object:
        return self.get(field)


class Checkpointer:
    """Stores checkpoints for user code, and raises the CheckpointError of the kclpy that user code has imported."""

    def __init__(self, execute: ExecuteCheckpoint, engine: EngineCalls, error: type[Exception]) -> None:
        self._execute = execute
        self._engine = engine
        self._error = error
        self.during = ActionName.INITIALIZE  # the last action that has begun

    def checkpoint(self, sequence_number: object = None, sub_sequence_number: object = None) -> None:
        """Store a position; without arguments, all records that were delivered."""
        request = checkpoint_request(sequence_number, sub_sequence_number)

        async def execute() -> str | None:
            return await self._execute(request, self.during)

        try:
            error = self._engine.wait(execute())
        except LeaseLostError:
            error = SHUTDOWN
        if error is not None:
            raise self._error(error)


class InProcessProcessors(ProcessorClients):
    """Makes a processor for each shard: `make` is a class of kclpy's processors, or a function without parameters."""

    def __init__(self, make: Callable[[], Any], *, restart_failed: bool = False) -> None:
        self._make = make
        self._restart_failed = restart_failed

    def __call__(self, shard: ServedShard, execute: ExecuteCheckpoint) -> ProcessorClient:
        """Make the client of one shard."""
        return _InProcessClient(shard, execute, self._make, restart_failed=self._restart_failed)

    async def close(self) -> None:
        """A processor ends with its last call."""


class _InProcessClient(ProcessorClient):
    def __init__(
        self, shard: ServedShard, execute: ExecuteCheckpoint, make: Callable[[], Any], *, restart_failed: bool
    ) -> None:
        self._shard = shard
        self._make = make
        self._restart_failed = restart_failed
        self._package = loaded_package()
        self._checkpointer = Checkpointer(
            execute, shard.engine, self._module("checkpoint_error").CheckpointError
        )
        self._processor: Any = None
        self._has_ended = False

    async def start(self) -> None:
        outcome = await self._shard.runner.call(self._make_processor)
        if isinstance(outcome, Raised):
            self._log(outcome.error, "its constructor")
            raise self._ended(outcome.error, "its constructor")

    async def perform(self, action: Action) -> None:
        async with self._shard.context.handler_slots:
            outcome = await self._shard.runner.call(self._dispatch, action)
        self._require_alive(outcome, action.name)

    def end(self) -> None:
        self._has_ended = True

    def lose(self) -> None:
        if self._processor is not None and not self._has_ended:
            self._shard.runner.post(self._tell_that_the_lease_is_lost)

    def _require_alive(self, outcome: Outcome, name: ActionName) -> None:
        """Raise if the processor has ended. An error of user code is only logged, as in kclpy."""
        if not isinstance(outcome, Raised):
            return
        self._log(outcome.error, name.value)
        is_failed_batch = self._restart_failed and name is ActionName.PROCESS_RECORDS
        if is_failed_batch or not isinstance(outcome.error, Exception):
            self._has_ended = True
            raise self._ended(outcome.error, name.value)

    def _log(self, error: BaseException, where: str) -> None:
        LOGGER.error(
            "processor shard=%s: %s raised %s at\n%s",
            self._shard.held.lease.key,
            where,
            type(error).__name__,
            traceback_without_message(error),
        )

    def _ended(self, error: BaseException, where: str) -> ProcessorEndedError:
        return ProcessorEndedError(
            f"the processor of shard {self._shard.held.lease.key} raised {type(error).__name__} in {where}"
        )

    # -- on the thread of the shard ------------------------------------------------------------------------------

    def _make_processor(self) -> None:
        made = self._make()
        self._processor = adapt(made, self._module("v2.processor"), self._module("v3.processor"))

    def _tell_that_the_lease_is_lost(self) -> None:
        try:
            self._dispatch(LeaseLost())
        except BaseException as error:  # noqa: BLE001 - nothing follows this call: an error can only be logged
            self._log(error, ActionName.LEASE_LOST.value)

    def _dispatch(self, action: Action) -> None:
        # Not earlier: a call that is still running when the lease is lost may request checkpoints.
        self._checkpointer.during = action.name
        make_input = getattr(self._module("messages"), _INPUTS[action.name])
        make_input(_members(action)).dispatch(self._checkpointer, self._processor)

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"{self._package}.{name}")


def _members(action: Action) -> dict[str, object]:
    """Return an action as kclpy's inputs expect it, with records instead of their JSON."""
    members: dict[str, object] = {"action": action.name.value}
    match action:
        case Initialize(shard_id, checkpoint):
            members["shardId"] = shard_id
            members["sequenceNumber"] = checkpoint.sequence_number
            members["subSequenceNumber"] = checkpoint.sub_sequence_number
        case ProcessRecords(records, millis_behind):
            members["records"] = [Record(record) for record in records]
            members["millisBehindLatest"] = millis_behind
        case _:
            pass
    return members
