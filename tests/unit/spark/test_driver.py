"""The driver of a query: at most one reader of each application in a Spark driver."""

from pathlib import Path

import pytest

from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.errors import ConfigError, LeaseholdError
from leasehold.spark.options import source_options
from leasehold.spark.query.driver import QueryDriver
from leasehold.spark.query.driver_lock import DriverLock

OPTIONS = source_options({"streamName": "orders", "applicationName": "billing", "profile": "no-such-profile"})


def test_a_started_driver_is_the_only_one_of_its_application_until_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its connections could not be opened: Spark calls it again. Another application is not affected."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    driver = QueryDriver(OPTIONS)
    with pytest.raises(LeaseholdError, match="no-such-profile"):
        driver.plan({}, BatchLimits(), wait_for_all=False)
    same, other = (DriverLock(name, str(OPTIONS.connection)) for name in ("billing", "audit"))
    with pytest.raises(ConfigError, match="another reader of this Spark driver"):
        same.acquire(patience_s=0)
    other.acquire(patience_s=0)
    driver.stop()
    same.acquire(patience_s=0)
    for lock in (same, other):
        lock.release()


def test_a_driver_that_was_never_started_can_be_stopped() -> None:
    QueryDriver(OPTIONS).stop()
