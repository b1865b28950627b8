"""The driver of a query on a cluster, as a program: from the stream to the archive, until a file tells it to stop.

    python -m tests.cluster.driver_program OPTIONS.json

Until a file is there, each write task waits once it has got its first rows: they are pinned then, and not written.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from leasehold.spark.archive_sink import ArchiveCommit, ArchiveSink, ArchiveStreamWriter
from leasehold.spark.pipeline.session import spark_session


class GatedWriter(ArchiveStreamWriter):
    """Leaves its process id in a folder, and waits until a file is there."""

    def __init__(self, writer: ArchiveStreamWriter, gate: Path) -> None:
        super().__init__(writer._settings)
        self._gate = gate

    def write(self, iterator: Iterator[Any]) -> ArchiveCommit:
        first = list(islice(iterator, 1))
        if not self._gate.exists():
            (self._gate.parent / f"waiting-{os.getpid()}").touch()
        while not self._gate.exists():
            time.sleep(0.05)
        return super().write(chain(first, iterator))


class GatedSink(ArchiveSink):
    """The archive behind a gate."""

    def __init__(self, options: dict[str, str]) -> None:
        self._gate = Path(options["gate"])
        super().__init__({name: value for name, value in options.items() if name != "gate"})

    @classmethod
    def name(cls) -> str:
        return "gated-archive"

    def streamWriter(self, schema: Any, overwrite: bool) -> GatedWriter:  # noqa: N802 - Spark's name
        return GatedWriter(super().streamWriter(schema, overwrite), self._gate)


def main(told: dict[str, Any]) -> None:
    """Run the query until the file `stop` is there."""
    stop = Path(told["stop"])
    with spark_session("cluster-test", told["spark"], checkpoint=told["checkpoint"]) as spark:
        spark.dataSource.register(GatedSink)
        query = (
            spark.readStream.format("leasehold")
            .options(**told["source"])
            .load()
            .writeStream.format("gated-archive")
            .options(checkpointLocation=told["checkpoint"], gate=told["gate"])
            .start(told["archive"])
        )
        while query.isActive and not stop.exists():
            query.awaitTermination(1)
        query.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
