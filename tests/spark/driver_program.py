"""A driver program like a user's: a query from the stream to the archive, with gates for the tests.

    python -m tests.spark.driver_program OPTIONS.json

It ends after all available records, or at SIGTERM.
"""

import json
import signal
import sys
from pathlib import Path
from threading import Event
from typing import Any

from leasehold.spark.pipeline.session import spark_session
from tests.spark.gates import SINK, SOURCE, GatedSink, GatedSource


def main(options: dict[str, Any]) -> None:
    """Run the query to its end."""
    stop = Event()
    signal.signal(
        signal.SIGTERM, lambda *_: stop.set()
    )  # py4j would swallow an exception within a call to the JVM
    settings = {"spark.master": "local[2,4]"}
    with spark_session("driver-program", settings, checkpoint=options["checkpoint"]) as spark:
        spark.dataSource.register(GatedSource)
        spark.dataSource.register(GatedSink)
        writer = (
            spark.readStream.format(SOURCE)
            .options(**options["source"])
            .load()
            .writeStream.format(SINK)
            .option("checkpointLocation", options["checkpoint"])
        )
        writer = writer.trigger(availableNow=True) if options["to_the_end"] else writer
        query = writer.start(options["archive"])
        while not stop.is_set() and not query.awaitTermination(0.5):
            pass
        query.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
