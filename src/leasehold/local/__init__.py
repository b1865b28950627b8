"""A Kinesis server for one machine: faithful enough to develop and test against, fast enough to measure with."""

from leasehold.local.local_kinesis import LocalKinesis

__all__ = ["LocalKinesis"]
