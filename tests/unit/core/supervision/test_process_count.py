"""How many worker processes to run."""

import pytest

from leasehold.core.supervision.process_count import parse_process_count, usable_cpus
from leasehold.errors import ConfigError


@pytest.mark.parametrize("text", ["0", "257", "-1", "1.5", "", "many", "²", "9" * 30])
def test_other_texts_are_refused(text: str) -> None:
    """The error names what is expected."""
    with pytest.raises(ConfigError, match="expected a number from 1 to 256, or auto"):
        parse_process_count(text)


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("256", 256), ("auto", None), ("AUTO", None)])
def test_numbers_and_auto_are_accepted(text: str, count: int | None) -> None:
    """`auto` is resolved on the machine."""
    assert parse_process_count(text) == count


@pytest.mark.parametrize(
    ("allowed", "quota", "cpus"),
    [(4, None, 4), (4, 2.0, 2), (4, 2.9, 2), (4, 0.1, 1), (2, 16.0, 2), (1, None, 1)],
)
def test_the_quota_limits_the_processors(allowed: int, quota: float | None, cpus: int) -> None:
    """There is at least one."""
    assert usable_cpus(allowed, quota) == cpus
