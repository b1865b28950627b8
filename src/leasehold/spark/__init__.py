"""Spark reads Kinesis, and writes an archive, exactly once: `register(spark)`, then `format("leasehold")`."""

from leasehold.spark.registering import register as register
