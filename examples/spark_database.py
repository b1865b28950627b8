"""Spark writes each order once into a database, here SQLite, with `foreachBatch`.

A batch that is repeated after a crash has the same rows, because the source pins them. So the place of a record, its
stream, shard, sequence number and sub-sequence number, is a key, and a row that is there already is left alone. The
same statement works in PostgreSQL; in other databases it is a MERGE.
"""

import os
import sqlite3

from pyspark.sql import DataFrame

import leasehold.spark

source = {"streamName": "orders", "applicationName": "orders-database", "startingPosition": "trim_horizon"}
if endpoint := os.environ.get("LEASEHOLD_KINESIS_ENDPOINT"):  # `leasehold local`, with leases in a file
    source |= {"endpointUrl": endpoint, "leases": "sqlite:///database-leases.sqlite"}

TABLE = """
    create table if not exists orders (
        stream text, shard text, sequence_number text, sub_sequence_number integer, data blob,
        primary key (stream, shard, sequence_number, sub_sequence_number))
"""
INSERT = "insert into orders values (?, ?, ?, ?, ?) on conflict do nothing"
COLUMNS = ("stream", "shardId", "sequenceNumber", "subSequenceNumber", "data")


def save(batch: DataFrame, _batch_id: int) -> None:
    database = sqlite3.connect("orders.sqlite")
    with database:  # one transaction
        database.execute(TABLE)
        database.executemany(INSERT, batch.select(*COLUMNS).toLocalIterator())
    database.close()


with leasehold.spark.session(
    "orders-database", {"spark.master": "local[2]"}, checkpoint="db-checkpoint"
) as spark:
    rows = spark.readStream.format("leasehold").options(**source, columns="all").load()
    query = (
        rows.writeStream.foreachBatch(save)
        .option("checkpointLocation", "db-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
