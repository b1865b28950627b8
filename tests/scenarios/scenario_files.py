"""Reads scenario files. A file is one object: what its scenarios share, and `scenarios`, a list of `name`,
`because`, `given`, `expect`. Nothing in a file goes unread: an unknown key, a key given twice and a missing
one are errors, so that a typo cannot turn a scenario into one that always passes.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Scenario:
    """One story, with what its file says for all of them."""

    name: str
    shared: dict[str, Any]
    given: dict[str, Any]
    expect: dict[str, Any]


def scenarios(folder: str, *, shared: Iterable[str] = ()) -> Callable[[Callable[..., None]], Any]:
    """A decorator: run the test with each scenario of each file in the folder."""
    cases = [
        pytest.param(scenario, id=f"{path.stem}: {scenario.name}")
        for path in sorted((HERE / folder).glob("*.json"))
        for scenario in read(path.read_text(), shared)
    ]
    assert cases, f"no scenario in {folder}"
    return pytest.mark.parametrize("scenario", cases)


def read(text: str, shared: Iterable[str] = ()) -> list[Scenario]:
    """The scenarios in the text of a file."""
    file = only(json.loads(text, object_pairs_hook=_no_key_twice), required=["about", "scenarios", *shared])
    rest = {key: file[key] for key in shared}
    return [_scenario(each, rest) for each in file["scenarios"]]


def only(given: Any, required: Iterable[str] = (), optional: Iterable[str] = ()) -> dict[str, Any]:
    """The object itself, after a look at its keys."""
    assert isinstance(given, dict), f"expected an object, found {given!r}"
    missing, unknown = set(required) - set(given), set(given) - set(required) - set(optional)
    assert not missing, f"missing {sorted(missing)} in {given}"
    assert not unknown, f"unknown {sorted(unknown)} in {given}"
    return given


def _scenario(given: Any, shared: dict[str, Any]) -> Scenario:
    each = only(given, required=["name", "because", "given", "expect"])
    return Scenario(each["name"], shared, each["given"], each["expect"])


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    assert len(found) == len(pairs), f"a key is given twice: {[key for key, _ in pairs]}"
    return found
