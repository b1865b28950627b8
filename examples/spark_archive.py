"""Spark writes every record of the stream "orders" once, as Parquet objects in the folder "archive".

`python examples/spark_archive.py` reads what is available now, and ends. Run it again, or kill it and run it again: the
archive has each record once. `leasehold archive verify archive` checks that.
"""

import os

import leasehold.spark

source = {"streamName": "orders", "applicationName": "orders-archive", "startingPosition": "trim_horizon"}
if endpoint := os.environ.get("LEASEHOLD_KINESIS_ENDPOINT"):  # `leasehold local`, with leases in a file
    source |= {"endpointUrl": endpoint, "leases": "sqlite:///archive-leases.sqlite"}

with leasehold.spark.session(
    "orders-archive", {"spark.master": "local[2]"}, checkpoint="checkpoint"
) as spark:
    rows = spark.readStream.format("leasehold").options(**source, columns="archive").load()
    query = (
        rows.writeStream.format("leasehold-archive")
        .option("checkpointLocation", "checkpoint")
        .trigger(availableNow=True)  # for a query that goes on: .trigger(processingTime="30 seconds")
        .start("archive")
    )
    query.awaitTermination()
    print("archived; next batch:", query.lastProgress["batchId"] + 1 if query.lastProgress else 0)
