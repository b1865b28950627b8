"""Spark counts the orders of each minute of arrival, with a watermark, into Parquet files in the folder "counts".

A window is written once, after the watermark has passed it: the counts are exact, and no window is written twice.
"""

import os

from pyspark.sql.functions import col, count, window

import leasehold.spark

source = {"streamName": "orders", "applicationName": "orders-counts", "startingPosition": "trim_horizon"}
if endpoint := os.environ.get("LEASEHOLD_KINESIS_ENDPOINT"):  # `leasehold local`, with leases in a file
    source |= {"endpointUrl": endpoint, "leases": "sqlite:///counts-leases.sqlite"}

settings = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"}
with leasehold.spark.session("orders-counts", settings, checkpoint="counts-checkpoint") as spark:
    rows = spark.readStream.format("leasehold").options(**source).load()
    counts = (
        rows.withWatermark("approximateArrivalTimestamp", "2 minutes")
        .groupBy(window("approximateArrivalTimestamp", "1 minute"))
        .agg(count("*").alias("orders"))
        .select(col("window.start").alias("minute"), "orders")
    )
    query = (
        counts.writeStream.format("parquet")
        .option("checkpointLocation", "counts-checkpoint")
        .option("path", "counts")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(
        "minutes that are complete:",
        spark.read.schema("minute TIMESTAMP, orders BIGINT").parquet("counts").count(),
    )
