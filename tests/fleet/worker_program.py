"""A worker as a user would write it. It logs every record that its handler gets.

Run it as a module with two arguments: the consumer's settings as JSON, and the folder for the log.
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
    """Consume until SIGTERM."""
    # Until the consumer handles the signal, nothing has started, so nothing has to be drained.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    worker = options["worker_id"]
    log = os.open(folder / f"{worker}.handled", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    consumer = Consumer(**options)

    @consumer.batch(max_records=500, max_wait="200ms")
    def record(batch: Batch) -> None:
        now_ns = time.monotonic_ns()
        # Shards of two streams may have the same id.
        shard = f"{batch.stream}/{batch.shard}" if consumer.settings.identity.streams else batch.shard
        lines = [
            f"{now_ns + index} {worker} {batch.fencing_token} {shard} "
            f"{entry.sequence_number}/{entry.sub_sequence_number} {entry.data.decode()} #\n"
            for index, entry in enumerate(batch)
        ]
        os.write(log, "".join(lines).encode())

    consumer.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
