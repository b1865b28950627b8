"""What is pinned before dead letters are stored, and that a state of a user is never taken for it."""

import json

import pytest

from leasehold.worker.delivery.disposals import Disposal, disposal_from_state, disposal_to_state

OURS = json.loads(disposal_to_state(Disposal("ValueError", "no", 3)))


def test_the_next_owner_knows_why_records_are_dead_letters() -> None:
    """All but the message, which may contain a payload and stays out of the table."""
    state = disposal_to_state(Disposal("ValueError", "a secret payload", 3))
    assert b"secret" not in state
    found = disposal_from_state(state)
    assert found is not None
    assert (found.error_type, found.attempts) == ("ValueError", 3)
    assert "unknown" in found.error_message


@pytest.mark.parametrize("name", ["E" * 5_000, "\N{SNOWMAN}" * 5_000])
def test_a_state_with_the_longest_name_of_an_error_is_recognised(name: str) -> None:
    """The name is cut, so that the state stays small."""
    found = disposal_from_state(disposal_to_state(Disposal(name, "no", 3)))
    assert found is not None
    assert found.error_type == name[:200]


@pytest.mark.parametrize(
    "state",
    [
        None,
        b"",
        b"object-17",
        b"\xff",
        b"[" * 2_000,
        b"null",
        b"17",
        b'"leasehold.dead-letter"',
        b'["mark", "leasehold.dead-letter"]',
        b'{"error": "ValueError", "attempts": 3}',
        json.dumps(OURS | {"mark": "mine"}).encode(),
        json.dumps(OURS | {"error": None}).encode(),
        json.dumps(OURS | {"attempts": None}).encode(),
        json.dumps(OURS | {"attempts": True}).encode(),
        json.dumps(OURS | {"attempts": "3"}).encode(),
        json.dumps(OURS | {"more": "x" * 2_048}).encode(),
    ],
)
def test_a_state_of_a_user_is_not_taken_for_ours(state: bytes | None) -> None:
    """Otherwise records whose effect the user has prepared would become dead letters."""
    assert disposal_from_state(state) is None
