"""A record processor of kclpy that logs every record, and checkpoints every batch. Daemons start it for each shard."""

import importlib
import os
import time
from typing import Any


def make_processor(base: type[Any]) -> Any:
    """Make the processor. `base` is the base class of version 3."""
    log = os.open(os.environ["DAEMON_HANDLED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    class Processor(base):  # type: ignore[misc]
        """Logs to the file of its daemon."""

        def initialize(self, initialize_input: Any) -> None:
            self.shard = initialize_input.shard_id

        def process_records(self, process_records_input: Any) -> None:
            now_ns, session = time.monotonic_ns(), f"{self.shard}:{os.getpid()}"
            lines = [
                f"{now_ns + index} {os.environ['DAEMON_WORKER']} {session} {self.shard} "
                f"{each.sequence_number}/{each.sub_sequence_number} {each.binary_data.decode()} #\n"
                for index, each in enumerate(process_records_input.records)
            ]
            os.write(log, "".join(lines).encode())
            process_records_input.checkpointer.checkpoint()

        def lease_lost(self, lease_lost_input: Any) -> None:
            pass

        def shard_ended(self, shard_ended_input: Any) -> None:
            shard_ended_input.checkpointer.checkpoint()

        def shutdown_requested(self, shutdown_requested_input: Any) -> None:
            shutdown_requested_input.checkpointer.checkpoint()

    return Processor()


if __name__ == "__main__":
    processors = importlib.import_module("amazon_kclpy.v3.processor")
    kcl = importlib.import_module("amazon_kclpy.kcl")
    kcl.KCLProcess(make_processor(processors.RecordProcessorBase)).run()
