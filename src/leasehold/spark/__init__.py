"""Spark reads Kinesis, and writes an archive, exactly once: `register(spark)`, then `format("leasehold")`."""

from leasehold.spark.registration import register as register
