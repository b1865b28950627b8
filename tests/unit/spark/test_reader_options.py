"""Options that a streaming query needs, or cannot have."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from leasehold.core.exactly_once.query_offset import INITIAL_OFFSET
from leasehold.errors import ConfigError
from leasehold.spark.options import source_options
from leasehold.spark.source import KinesisStreamReader


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "applicationName is missing"),
        (
            {"applicationName": "billing", "endingTimestamp": "2026-11-15T12:00:00Z"},
            "endingTimestamp is an option of a batch read",
        ),
    ],
)
def test_an_option_that_does_not_fit_is_reported_by_the_first_plan(
    options: dict[str, str], sentence: str
) -> None:
    """Not by the constructor: Spark hides its errors behind an UnboundLocalError of its own process."""
    reader = KinesisStreamReader(source_options({"streamName": "orders", **options}))
    with pytest.raises(ConfigError, match=sentence):
        reader.latestOffset(dict(INITIAL_OFFSET), ReadAllAvailable())
    with pytest.raises(ConfigError, match=sentence):
        reader.prepareForTriggerAvailableNow()
    reader.stop()
