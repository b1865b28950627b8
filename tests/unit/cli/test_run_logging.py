"""`leasehold run --log-level debug` shows our lines, and with --log-aws also those of the AWS SDK."""

import logging
from collections.abc import Iterator

import pytest

from leasehold.cli.run import AWS_LOGGERS, configure_logging


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Restore the levels after the test."""
    names = (None, *AWS_LOGGERS)
    before = [logging.getLogger(name).level for name in names]
    yield
    for name, level in zip(names, before, strict=True):
        logging.getLogger(name).setLevel(level)


@pytest.mark.parametrize("with_aws", [False, True])
def test_debug_lines_of_the_aws_sdk_are_shown_only_on_request(with_aws: bool) -> None:
    configure_logging("DEBUG", log_aws=with_aws)
    assert logging.getLogger("leasehold.fleet").isEnabledFor(logging.DEBUG)
    assert logging.getLogger("botocore.endpoint").isEnabledFor(logging.DEBUG) == with_aws
    assert logging.getLogger("botocore.endpoint").isEnabledFor(logging.INFO)


def test_a_higher_level_holds_for_all() -> None:
    configure_logging("ERROR", log_aws=False)
    assert not logging.getLogger("botocore").isEnabledFor(logging.WARNING)
