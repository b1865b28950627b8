"""The `leasehold` command. If the libraries of its extra are missing, it says how to install them."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from leasehold.cli.command import leasehold  # noqa: PLC0415 - the libraries of the extra may be missing
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        sys.exit(f"leasehold: {library} is not installed: pip install 'leasehold[cli]'")
    leasehold()
