"""docs/local-kinesis.md documents every setting, option and control request."""

from dataclasses import fields
from pathlib import Path

from leasehold.cli.local import local
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.local.control_endpoint import _ACTIONS, CONTROL_PREFIX

PAGE = (Path(__file__).parents[3] / "docs" / "local-kinesis.md").read_text(encoding="utf-8")


def test_every_setting_is_documented_with_its_default() -> None:
    """Each setting has a row in the table."""
    for item in fields(ServiceSettings):
        assert f"| `{item.name}` | {str(item.default).lower()} |" in PAGE


def test_every_option_is_documented() -> None:
    """Each option of `leasehold local` is in the page."""
    for option in local.params:
        assert f"`{option.opts[0]}" in PAGE


def test_every_control_request_is_documented() -> None:
    """Each method and path is in the page."""
    for method, path in _ACTIONS:
        assert f"`{method} {CONTROL_PREFIX}{path}`" in PAGE
