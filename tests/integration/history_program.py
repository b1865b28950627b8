"""A worker that archives a stream, whose older records it may read from another archive.

    python -m tests.integration.history_program ENDPOINT LEASES OUTPUT [HISTORY]

It runs until SIGTERM.
"""

import os
import sys

from leasehold import Consumer, archive_batches
from leasehold.archive import ArchiveSettings

S3_ENDPOINT = os.environ.get("TEST_S3_ENDPOINT")


def main(endpoint: str, leases: str, output: str, history: str | None = None) -> None:
    """Run the worker."""
    consumer = Consumer(
        stream="orders",
        application="archive",
        leases=f"sqlite:///{leases}",
        kinesis_endpoint=endpoint,
        archive=history,
        s3_endpoint=S3_ENDPOINT,
        failover_after="2s",
        refresh_every="500ms",
        idle_poll_every="200ms",
        check_parents_every="200ms",
    )
    settings = ArchiveSettings(url=output, s3_endpoint=S3_ENDPOINT)
    archive_batches(consumer, settings, max_records=10, max_wait="100ms")
    consumer.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
