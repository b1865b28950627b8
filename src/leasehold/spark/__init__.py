"""The Spark source and archive sink, both exactly once: `register(spark)`, then `format("leasehold")`."""

from leasehold.spark.registration import register as register
