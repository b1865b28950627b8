"""`python -m leasehold.kclpy SCRIPT [ARGUMENTS]` runs a program whose imports of `amazon_kclpy` find `leasehold.kclpy`.

So the `executableName` of a properties file needs no `amazon_kclpy`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from leasehold.errors import ConfigError
from leasehold.kclpy.alias import install_alias


def main(arguments: list[str]) -> None:
    """Run the script as if Python had been called with it."""
    if not arguments:
        sys.exit("usage: python -m leasehold.kclpy SCRIPT [ARGUMENTS]")
    try:
        install_alias()
    except ConfigError as error:
        sys.exit(str(error))
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
