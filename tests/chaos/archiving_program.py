"""A worker that archives its stream, as a user would write it.

It has two arguments: its settings as JSON, with the settings of the archive under `archive`, and a folder.
"""

import json
import signal
import sys
from pathlib import Path
from typing import Any

from leasehold import Consumer
from leasehold.archive import ArchiveSettings
from leasehold.worker.archive_handler import archive_batches


def main(options: dict[str, Any], folder: Path) -> None:
    """Archive until SIGTERM."""
    # Before the consumer handles SIGTERM, the process can simply exit.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    settings = ArchiveSettings(**options.pop("archive"))
    consumer = Consumer(**options)
    archive_batches(consumer, settings, max_wait="2s")
    (folder / f"{options['worker_id']}.handled").touch()  # shows that the worker has started
    consumer.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
