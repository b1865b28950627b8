"""Wrong values of options: they end a command with exit code 2, as those do that click finds itself."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from leasehold.cli.output import escape_unprintable
from leasehold.errors import ConfigError

SECONDS_MAX: Final = 10**9
_SETTING: Final = re.compile(r"\A[a-z][a-z_]*(?=[=: ])")


@contextmanager
def refuse_values(*, of_settings: bool = False) -> Iterator[None]:
    """Report a ConfigError of the block as wrong usage.

    Only for blocks that check what the user has typed: a ConfigError of a service, a file or a library is a failure.
    `of_settings`: the sentence begins with the name of a setting, and the option has the same name.
    """
    try:
        yield
    except ConfigError as error:
        text = escape_unprintable(str(error))
        raise click.UsageError(_name_option(text) if of_settings else text) from error


def _name_option(text: str) -> str:
    """Write the setting at the start of a sentence as an option.

    >>> _name_option("older_than: expected at least one minute"), _name_option("leases='x': expected 'dynamodb'")
    ('--older-than: expected at least one minute', "--leases='x': expected 'dynamodb'")
    """
    return _SETTING.sub(lambda found: "--" + found[0].replace("_", "-"), text, count=1)


def check_target(target: str) -> None:
    """Raise ConfigError if a text is not `module:name`."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise ConfigError(f"{target!r}: expected MODULE:NAME, for example billing:consumer")
    if not all(part.isidentifier() for part in module_name.split(".")) or module_name.endswith(".py"):
        raise ConfigError(
            f"{target!r}: {module_name} is not the name of a module: for the file app/billing.py, change to its folder "
            "and write billing:consumer, or write app.billing:consumer"
        )


class Seconds(click.FloatRange):
    """A number of seconds. Neither `nan` nor `inf`, which click's own range lets pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the number."""
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds) or seconds > SECONDS_MAX:
            self.fail(f"{value}: expected a number of at most {SECONDS_MAX}", param, ctx)
        return seconds
