"""Exactly-once delivery to Spark and to the archive: pinned batches, offsets, ranges and object keys."""
