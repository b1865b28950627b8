"""Loads botocore's descriptions of services and endpoints once for all clients, in little memory.

By itself each session of botocore loads them again, in dictionaries twice the size of plain ones, with the
documentation of every operation, and with the endpoints of 300 services. That is a quarter of the memory of an idle
worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import botocore.session
from botocore.loaders import JSONFileLoader, Loader, create_loader

_DOCUMENTATION: Final = "documentation"
# The services for which our sessions make clients, also for credentials, as the file of endpoints names them. botocore
# derives the endpoint of any other service from the defaults of its partition.
_SERVICES: Final = frozenset(
    {"dynamodb", "kinesis", "monitoring", "oidc", "portal.sso", "s3", "signin", "sso", "sts"}
)


def share_models(session: botocore.session.Session) -> None:
    """Let a session take its descriptions from the common loader. Call it before the session makes a client."""
    session.register_component("data_loader", _common_loader(session.get_config_variable("data_path")))


@lru_cache(maxsize=8)
def _common_loader(search_path: str | None) -> Loader:
    loader = create_loader(search_path)
    loader.file_loader = _CompactLoader()
    return loader


class _CompactLoader(JSONFileLoader):  # type: ignore[misc] # botocore has no types
    def _load_file(self, full_path: str, open_method: Callable[..., Any]) -> Mapping[str, Any] | None:
        try:
            with open_method(full_path, "rb") as file:
                content: Mapping[str, Any] = json.loads(file.read(), object_hook=_drop_unused)
        except FileNotFoundError:
            return None
        return content


def _drop_unused(value: dict[str, Any]) -> dict[str, Any]:
    """Drop texts for readers, and the endpoints of services that we never call.

    A member of a structure whose name is `documentation` is a dictionary, and stays.
    """
    if isinstance(value.get(_DOCUMENTATION), str):
        del value[_DOCUMENTATION]
    if "dnsSuffix" in value and "services" in value:  # a partition in the file of endpoints
        value["services"] = {name: each for name, each in value["services"].items() if name in _SERVICES}
    return value
