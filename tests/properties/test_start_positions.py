"""Every start position has one documented form, or it is refused."""

import json
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.exactly_once.query_offset import ReadStart
from leasehold.core.initial_position import parse_initial_position
from leasehold.core.position import AT_TIMESTAMP, LATEST
from leasehold.errors import ConfigError
from leasehold.spark.starting_positions import StartingPositions, parse_starting_positions

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Pieces of valid positions, in any combination.
PIECES = st.sampled_from(
    [
        "latest", "trim_horizon", "earliest", "AT_TIMESTAMP", "at_timestamp", "format", "default",
        "shardId-000000000000", "shardId-1", "2026-01-01T00:00:00", "2026-01-01", "Z", "+01:00", "PST", "CST", " ", "T",
        "4959" * 14, "1767225600", "MM/dd/yyyy", "{", "}", '"', ":", ",", "/3", "[", "]", "null", "true", "7",
    ]
)  # fmt: skip
TEXTS = st.one_of(
    st.lists(PIECES, max_size=8).map("".join),
    st.dictionaries(PIECES, st.one_of(PIECES, st.integers(), st.none(), st.lists(PIECES, max_size=2))).map(
        json.dumps
    ),
    st.text(max_size=20),
)
LATEST_FORM = re.compile(r"\s*latest\s*", re.IGNORECASE)
MOMENTS = st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2100, 1, 1))  # noqa: DTZ001
ZONES = st.integers(-14 * 4, 14 * 4).map(lambda quarters: timezone(timedelta(minutes=15 * quarters)))


def parse(text: str, starting_ms: int | None = None) -> StartingPositions | None:
    """Parse a position, or return None if it is refused."""
    with suppress(ConfigError):
        return parse_starting_positions(text, starting_ms)
    return None


@given(TEXTS)
def test_a_text_that_is_not_latest_never_means_latest(text: str) -> None:
    """It means what it says, or it is an error."""
    found = parse(text)
    if found is None:
        return
    if not text.strip().startswith("{"):
        assert not found.shards
        assert (found.initial.sentinel == LATEST) == bool(LATEST_FORM.fullmatch(text))
        return
    members = json.loads(text)
    if found.initial.sentinel == AT_TIMESTAMP and "default" not in members:
        assert {name.lower() for name in members} <= {"at_timestamp", "format"}
    else:
        assert {name for name in members if name != "default"} == set(found.shards)
        is_latest = LATEST_FORM.fullmatch(members.get("default", "latest"))
        assert (found.initial.sentinel == LATEST) == bool(is_latest)


@given(TEXTS)
def test_a_worker_and_a_query_give_a_text_the_same_meaning(text: str) -> None:
    """A query also accepts starts of single shards, and a worker refuses those."""
    found = parse(text)
    try:
        initial = parse_initial_position(text)
    except ConfigError:
        assert found is None or text.strip().startswith("{")
    else:
        assert found == StartingPositions(initial)


@given(TEXTS)
def test_a_starting_timestamp_is_used_or_refused(text: str) -> None:
    """It is never ignored."""
    found = parse(text, starting_ms=1)
    assert found is None or found.initial.timestamp_ms == 1


@given(MOMENTS, ZONES)
def test_a_time_is_the_same_in_every_form(moment: datetime, zone: timezone) -> None:
    """Alone, after AT_TIMESTAMP, as JSON, in a format, and for one shard."""
    local = moment.replace(tzinfo=zone)
    expected = (local - EPOCH) // timedelta(milliseconds=1)
    iso = local.isoformat(timespec="microseconds")
    pattern = "dd.MM.yyyy 'at' HH:mm:ss,SSS Z"
    forms = [
        iso,
        f"AT_TIMESTAMP {iso}",
        json.dumps({"at_timestamp": iso}),
        json.dumps(
            {
                "at_timestamp": f"{local:%d.%m.%Y at %H:%M:%S},{local.microsecond // 1000:03} {local:%z}",
                "format": pattern,
            }
        ),
    ]
    assert [parse_initial_position(form).timestamp_ms for form in forms] == [expected] * 4
    found = parse(json.dumps({"shardId-000000000000": iso}))
    assert found is not None
    assert list(found.shards.values()) == [ReadStart(AT_TIMESTAMP, expected)]
