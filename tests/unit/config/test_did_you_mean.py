"""Unknown names get a hint with the closest known name."""

from leasehold.config.did_you_mean import did_you_mean, nearest

KNOWN = ["maxRecords", "max_wait", "stream"]


def test_the_nearest_name_is_found_in_any_case() -> None:
    """The result is spelled as the known name."""
    assert nearest("MAXRECORD", KNOWN) == "maxRecords"
    assert nearest("strem", KNOWN) == "stream"


def test_a_name_that_is_not_similar_has_no_match() -> None:
    """Then the hint is the given text."""
    assert nearest("zzz", KNOWN) is None
    assert did_you_mean("zzz", KNOWN, otherwise="see --help") == "see --help"
    assert did_you_mean("max_wai", KNOWN, otherwise="see --help") == "did you mean max_wait?"
