"""Spark adds orders and their number to PostgreSQL, each order once, also if the driver is killed at any moment.

A number has no key by which a repeated order could be recognised. So the transaction that adds the orders also stores
how far each shard was written, and a batch that is repeated has no rows after these positions.
"""

import os

import psycopg
from pyspark.sql import DataFrame

import leasehold.spark

DATABASE = os.environ.get("DATABASE_URL", "postgresql://localhost/orders")
source = {"streamName": "orders", "applicationName": "orders-postgresql", "startingPosition": "trim_horizon"}
if endpoint := os.environ.get("LEASEHOLD_KINESIS_ENDPOINT"):  # `leasehold local`, with leases in a file
    source |= {"endpointUrl": endpoint, "leases": "sqlite:///postgresql-leases.sqlite"}

TABLES = """
    create table if not exists orders (shard text, data bytea);
    create table if not exists totals (name text primary key, orders bigint);
    create table if not exists positions (stream text, shard text, position text, primary key (stream, shard));
"""
ADD = """
    insert into totals values ('all', %s)
    on conflict (name) do update set orders = totals.orders + excluded.orders
"""
STORE = """
    insert into positions values (%s, %s, %s)
    on conflict (stream, shard) do update set position = excluded.position
"""


def save(batch: DataFrame, _batch_id: int) -> None:
    with psycopg.connect(DATABASE, autocommit=True) as database:
        # If a driver that was frozen writes the same batch at the same time, one of the two fails.
        database.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        with database.transaction(), database.cursor() as cursor:
            cursor.execute("select stream, shard, position from positions")
            stored = {(stream, shard): position for stream, shard, position in cursor}
            new = leasehold.spark.rows_after(batch, stored).persist()
            orders = new.select("shardId", "data").collect()
            cursor.executemany("insert into orders values (%s, %s)", orders)
            cursor.execute(ADD, [len(orders)])
            cursor.executemany(
                STORE, [(*shard, position) for shard, position in leasehold.spark.last_positions(new).items()]
            )
            new.unpersist()


with psycopg.connect(DATABASE) as database:
    database.execute(TABLES)
with leasehold.spark.session(
    "orders-postgresql", {"spark.master": "local[2]"}, checkpoint="postgresql-checkpoint"
) as spark:
    rows = spark.readStream.format("leasehold").options(**source, columns="all").load()
    query = (
        rows.writeStream.foreachBatch(save)
        .option("checkpointLocation", "postgresql-checkpoint")
        .trigger(processingTime="1 second")
        .start()
    )
    query.awaitTermination()
