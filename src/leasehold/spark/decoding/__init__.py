"""Decodes payloads in a pipeline: Avro and Protobuf in Python, because Spark's own functions need further jars."""
