"""Reports a missing optional library with the extra that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from leasehold.errors import ConfigError


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turn a failed import in this block into a ConfigError that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        raise ConfigError(f"{library} is not installed: pip install 'leasehold[{extra}]'") from error
