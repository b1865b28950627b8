"""The sample of kclpy, which also records what it handles and, on some records, does what a child should not do.

It does each bad deed once: a file marks it as done.
"""

import importlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any


def is_first(deed: str) -> bool:
    """Return whether a deed was not done yet, and mark it as done."""
    try:
        (Path(os.environ["HANDLED"]).parent / f"done-{deed}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def record_handled(shard: str, sequence_number: object, text: str) -> None:
    """Record that a record is handled."""
    record = {"pid": os.getpid(), "shard": shard, "number": str(sequence_number), "data": text}
    with Path(os.environ["HANDLED"]).open("a") as file:
        file.write(json.dumps(record) + "\n")


def recording(sample: type[Any]) -> type[Any]:
    """Return the sample's class, which also records."""

    class Recording(sample):  # type: ignore[misc]
        """Records each record, and checkpoints as the sample does."""

        def initialize(self, initialize_input: Any) -> None:
            self.shard = initialize_input.shard_id
            super().initialize(initialize_input)

        def process_record(self, data: bytes, partition_key: str, sequence_number: int, sub: int) -> None:
            text = data.decode()
            if text == "die" and is_first(text):
                os.kill(os.getpid(), signal.SIGKILL)
            if text == "hang" and is_first(text):
                time.sleep(3600)
            if text == "junk":
                print("junk on stdout, without a line end", end="")
                print("{" * 100_000)
            record_handled(self.shard, sequence_number, text)
            super().process_record(data, partition_key, sequence_number, sub)

    return Recording


if __name__ == "__main__":
    sample_app = importlib.import_module("samples.sample_kclpy_app")
    kcl = importlib.import_module("amazon_kclpy.kcl")
    kcl.KCLProcess(recording(sample_app.RecordProcessor)()).run()
