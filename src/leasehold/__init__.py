"""Consume Amazon Kinesis Data Streams from Python, as one fleet with the Java Kinesis Client Library."""
