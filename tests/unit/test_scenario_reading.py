"""The reader of scenario files refuses what it does not understand."""

import json
from typing import Any

import pytest

from tests.scenarios.scenario_files import only, read

SOUND = {"name": "n", "because": "b", "given": {}, "expect": {}}


def text(scenario: dict[str, Any], **rest: Any) -> str:
    return json.dumps({"about": "a", "scenarios": [scenario], **rest})


def test_a_sound_file_is_read() -> None:
    """The measure for the refusals below."""
    (scenario,) = read(text(SOUND, stream=[1]), shared=["stream"])
    assert (scenario.name, scenario.shared) == ("n", {"stream": [1]})


@pytest.mark.parametrize("scenario", [{**SOUND, "expects": {}}, {"name": "n", "given": {}, "expect": {}}])
def test_a_misspelt_or_missing_key_is_refused(scenario: dict[str, Any]) -> None:
    """A typo cannot turn an expectation into one that always holds."""
    with pytest.raises(AssertionError, match=r"unknown \['expects'\]|missing \['because'\]"):
        read(text(scenario))


def test_an_unknown_key_of_the_file_is_refused() -> None:
    """What a runner does not ask for would go unread."""
    with pytest.raises(AssertionError, match=r"unknown \['stream'\]"):
        read(text(SOUND, stream=[]))


def test_a_key_given_twice_is_refused() -> None:
    """JSON would silently take the last one."""
    with pytest.raises(AssertionError, match="a key is given twice"):
        read('{"about": "a", "about": "b", "scenarios": []}')


def test_something_else_than_an_object_is_refused() -> None:
    """A list where an object belongs has no keys to check."""
    with pytest.raises(AssertionError, match="expected an object"):
        only([])
