"""The base of record processors of version 3, and the adapter for those of version 2."""

from __future__ import annotations

from typing import Any

from leasehold.kclpy.messages import (
    InitializeInput,
    LeaseLostInput,
    ProcessRecordsInput,
    ShardEndedInput,
    ShutdownInput,
    ShutdownRequestedInput,
)


class RecordProcessorBase:
    """The base of record processors of version 3."""

    version = 3

    def initialize(self, initialize_input: InitializeInput) -> None:
        """Called once, before any records."""
        raise NotImplementedError

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Called with records, in order."""
        raise NotImplementedError

    def lease_lost(self, lease_lost_input: LeaseLostInput) -> None:
        """Called when the lease is lost or released. Nothing can be stored."""
        raise NotImplementedError

    def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
        """Called at the end of the shard. Must checkpoint."""
        raise NotImplementedError

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> None:
        """Called before the lease is released: the last chance to checkpoint."""
        raise NotImplementedError


class V2toV3Processor(RecordProcessorBase):
    """Calls a processor of version 2."""

    def __init__(self, delegate: Any) -> None:
        self.delegate = delegate

    def initialize(self, initialize_input: InitializeInput) -> None:
        """Pass on the start."""
        self.delegate.initialize(initialize_input)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Pass on the records."""
        self.delegate.process_records(process_records_input)

    def lease_lost(self, lease_lost_input: LeaseLostInput) -> None:  # noqa: ARG002
        """Shut down with the reason ZOMBIE."""
        self.delegate.shutdown(ShutdownInput.zombie())

    def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
        """Shut down with the reason TERMINATE."""
        assert shard_ended_input.checkpointer is not None
        self.delegate.shutdown(ShutdownInput.terminate(shard_ended_input.checkpointer))

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> None:
        """Pass on the request."""
        self.delegate.shutdown_requested(shutdown_requested_input)
