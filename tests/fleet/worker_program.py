"""A worker as a user would write it, which writes down every record that its handler was given.

Run as a module with one argument: the consumer's settings as JSON, and the folder for the log.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from leasehold import Batch, Consumer


def main(options: dict[str, Any], folder: Path) -> None:
    """Consume until told to stop."""
    # Until the consumer listens for it: nothing was begun, so nothing has to be ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    worker = options["worker_id"]
    log = os.open(folder / f"{worker}.handled", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    consumer = Consumer(**options)

    @consumer.batch(max_records=500, max_wait="200ms")
    def note(batch: Batch) -> None:
        now_ns = time.monotonic_ns()
        # Shards of two streams have one id; tokens have not.
        shard = f"{batch.stream}/{batch.shard}" if consumer.settings.identity.streams else batch.shard
        lines = [
            f"{now_ns + place} {worker} {batch.fencing_token} {shard} "
            f"{record.sequence_number}/{record.sub_sequence_number} {record.data.decode()} #\n"
            for place, record in enumerate(batch)
        ]
        os.write(log, "".join(lines).encode())

    consumer.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
