"""Lets imports of `amazon_kclpy` find `leasehold.kclpy`: only if a user asks for it, and if it is not installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Final

from leasehold.errors import ConfigError

NAME: Final = "amazon_kclpy"
OURS: Final = "leasehold.kclpy"
_MODULES: Final = (
    "",
    ".checkpoint_error",
    ".dispatch",
    ".kcl",
    ".messages",
    ".v2",
    ".v2.processor",
    ".v3",
    ".v3.processor",
)


def install_alias() -> None:
    """Make `import amazon_kclpy` import this package. Raises ConfigError if the real one is installed."""
    found = sys.modules.get(NAME)
    if found is not None and found is sys.modules.get(OURS):
        return
    if found is not None or importlib.util.find_spec(NAME) is not None:
        raise ConfigError(f"{NAME} is installed, so its imports need no alias: remove the alias, or {NAME}")
    for module in _MODULES:
        sys.modules[f"{NAME}{module}"] = importlib.import_module(f"{OURS}{module}")


def loaded_package() -> str:
    """Return the package whose classes user code uses: `amazon_kclpy` if it is loaded, otherwise ours."""
    return NAME if NAME in sys.modules else OURS
