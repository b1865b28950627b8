"""Spark adds orders to an Iceberg table, each once, with Iceberg's Python library and without a jar.

Iceberg's jar is built for one version of Spark, and there may be none for yours. Its Python library does not depend on
Spark. Each batch is one commit of the table, which also stores how far each shard was written, in properties of the
table. So a batch that is repeated after a crash has no new rows.
"""

import os
from pathlib import Path

from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame

import leasehold.spark

source = {"streamName": "orders", "applicationName": "orders-iceberg", "startingPosition": "trim_horizon"}
if endpoint := os.environ.get("LEASEHOLD_KINESIS_ENDPOINT"):  # `leasehold local`, with leases in a file
    source |= {"endpointUrl": endpoint, "leases": "sqlite:///iceberg-leases.sqlite"}

COLUMNS = ["partitionKey", "data", "stream", "shardId", "sequenceNumber", "subSequenceNumber"]
POSITION = "leasehold.position/"
# A commit that another driver has overtaken must not be repeated as it is: its rows may be in the table by now.
PROPERTIES = {"commit.retry.num-retries": "0"}

Path("warehouse").mkdir(exist_ok=True)
catalog = load_catalog(
    "orders",
    type="sql",
    uri="sqlite:///warehouse/catalog.sqlite",
    warehouse=Path("warehouse").absolute().as_uri(),
)
catalog.create_namespace_if_not_exists("shop")


def save(batch: DataFrame, _batch_id: int) -> None:
    records = batch.select(*COLUMNS)
    table = catalog.create_table_if_not_exists(
        "shop.orders", schema=records.limit(0).toArrow().schema, properties=PROPERTIES
    )
    stored = {
        tuple(name.removeprefix(POSITION).split("/")): position
        for name, position in table.properties.items()
        if name.startswith(POSITION)
    }
    new = leasehold.spark.rows_after(records, stored).persist()
    positions = leasehold.spark.last_positions(new)
    if positions:
        with table.transaction() as transaction:  # one commit
            transaction.append(new.toArrow())
            transaction.set_properties(
                {POSITION + "/".join(shard): position for shard, position in positions.items()}
            )
    new.unpersist()


with leasehold.spark.session(
    "orders-iceberg", {"spark.master": "local[2]"}, checkpoint="iceberg-checkpoint"
) as spark:
    rows = spark.readStream.format("leasehold").options(**source, columns="all").load()
    query = (
        rows.writeStream.foreachBatch(save)
        .option("checkpointLocation", "iceberg-checkpoint")
        .trigger(processingTime="1 second")
        .start()
    )
    query.awaitTermination()
