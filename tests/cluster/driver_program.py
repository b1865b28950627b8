"""The driver program of a query on a cluster, from the stream to the archive. It ends when a file is created.

    python -m tests.cluster.driver_program OPTIONS.json

Each write task waits for another file after its first rows: they are pinned then, and not written.
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
    """Creates a file with its process id, and waits until the gate file exists."""

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


def main(options: dict[str, Any]) -> None:
    """Run the query until the file `stop` exists."""
    stop = Path(options["stop"])
    with spark_session("cluster-test", options["spark"], checkpoint=options["checkpoint"]) as spark:
        spark.dataSource.register(GatedSink)
        query = (
            spark.readStream.format("leasehold")
            .options(**options["source"])
            .load()
            .writeStream.format("gated-archive")
            .options(checkpointLocation=options["checkpoint"], gate=options["gate"])
            .start(options["archive"])
        )
        while query.isActive and not stop.exists():
            query.awaitTermination(1)
        query.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
