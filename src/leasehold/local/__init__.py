"""A Kinesis server for development and tests on one machine. It listens on loopback addresses only."""

from leasehold.local.local_kinesis import LocalKinesis

__all__ = ["LocalKinesis"]
