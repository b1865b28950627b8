"""`KCLProcess`, which speaks the MultiLang protocol on standard input and output, and processors of version 1."""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any, TextIO

from leasehold.kclpy import dispatch, messages
from leasehold.kclpy.checkpoint_error import CheckpointError as CheckpointError
from leasehold.kclpy.v2 import processor as v2processor
from leasehold.kclpy.v3 import processor as v3processor


class _Lines:
    """Reads and writes messages."""

    def __init__(self, input_file: TextIO, output_file: TextIO, error_file: TextIO) -> None:
        self.input_file = input_file
        self.output_file = output_file
        self.error_file = error_file

    def read(self) -> Any:
        """Return the next message, or None at the end of input."""
        line = self.input_file.readline()
        return json.loads(line, object_hook=dispatch.message_decode) if line else None

    def write(self, message: dict[str, Any]) -> None:
        """Write a message on a line of its own, whatever else was printed."""
        self.output_file.write(f"\n{json.dumps(message)}\n")
        self.output_file.flush()


class Checkpointer:
    """Requests checkpoints from the daemon."""

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines

    def checkpoint(self, sequence_number: str | None = None, sub_sequence_number: int | None = None) -> None:
        """Store a position; without arguments, all records that were delivered. Raises CheckpointError."""
        self._lines.write(
            {
                "action": "checkpoint",
                "sequenceNumber": sequence_number,
                "subSequenceNumber": sub_sequence_number,
            }
        )
        reply = self._lines.read()
        if not isinstance(reply, messages.CheckpointInput):
            raise CheckpointError("InvalidStateException")
        if reply.error is not None:
            raise CheckpointError(reply.error)


class RecordProcessorBase:
    """The base of record processors of version 1."""

    version = 1

    def initialize(self, shard_id: str) -> None:
        """Called once, before any records."""
        raise NotImplementedError

    def process_records(self, records: list[messages.Record], checkpointer: Any) -> None:
        """Called with records, in order."""
        raise NotImplementedError

    def shutdown(self, checkpointer: Any, reason: str) -> None:
        """Called at the end: the reason is TERMINATE (the shard has ended: checkpoint) or ZOMBIE."""
        raise NotImplementedError

    def shutdown_requested(self, checkpointer: Any) -> None:
        """Called before the lease is released: the last chance to checkpoint."""


class KCLProcess:
    """Runs a record processor for the daemon that has started this process."""

    def __init__(
        self,
        record_processor: Any,
        input_file: TextIO | None = None,
        output_file: TextIO | None = None,
        error_file: TextIO | None = None,
    ) -> None:
        self._lines = _Lines(input_file or sys.stdin, output_file or sys.stdout, error_file or sys.stderr)
        self.checkpointer = Checkpointer(self._lines)
        self.processor = adapt(record_processor, v2processor, v3processor)

    def run(self) -> None:
        """Perform actions until the end of input."""
        while (action := self._lines.read()) is not None:
            try:
                action.dispatch(self.checkpointer, self.processor)
            except Exception:  # noqa: BLE001 - as in kclpy: an error of user code is printed, and the records are skipped
                traceback.print_exc(file=self._lines.error_file)
                self._lines.error_file.flush()
            self._lines.write({"action": "status", "responseFor": action.action})


def adapt(record_processor: Any, v2: Any, v3: Any) -> Any:
    """Return a processor of version 3 for one of any version. `v2` and `v3` are the modules with the adapters."""
    if record_processor.version == 1:
        record_processor = v2.V1toV2Processor(record_processor)
    return v3.V2toV3Processor(record_processor) if record_processor.version == 2 else record_processor
