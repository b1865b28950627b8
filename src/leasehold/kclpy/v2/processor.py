"""The base of record processors of version 2, and the adapter for those of version 1."""

from __future__ import annotations

from typing import Any

from leasehold.kclpy.messages import (
    InitializeInput,
    ProcessRecordsInput,
    ShutdownInput,
    ShutdownRequestedInput,
)


class RecordProcessorBase:
    """The base of record processors of version 2."""

    version = 2

    def initialize(self, initialize_input: InitializeInput) -> None:
        """Called once, before any records."""
        raise NotImplementedError

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Called with records, in order."""
        raise NotImplementedError

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Called at the end: the reason is TERMINATE (the shard has ended: checkpoint) or ZOMBIE."""
        raise NotImplementedError

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> None:
        """Called before the lease is released: the last chance to checkpoint."""


class V1toV2Processor(RecordProcessorBase):
    """Calls a processor of version 1."""

    def __init__(self, delegate: Any) -> None:
        self.delegate = delegate

    def initialize(self, initialize_input: InitializeInput) -> None:
        """Pass on the shard."""
        self.delegate.initialize(initialize_input.shard_id)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Pass on the records."""
        self.delegate.process_records(process_records_input.records, process_records_input.checkpointer)

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Pass on the reason."""
        self.delegate.shutdown(shutdown_input.checkpointer, shutdown_input.reason)

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> None:
        """Pass on the request."""
        self.delegate.shutdown_requested(shutdown_requested_input.checkpointer)
