"""The `leasehold` command. Its libraries are an extra; without them it says so in a sentence."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from leasehold.cli.command import leasehold  # noqa: PLC0415 - an extra that may be missing
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        sys.exit(f"leasehold: {library} is not installed: pip install 'leasehold[cli]'")
    leasehold()
