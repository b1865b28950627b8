"""Makes boto3 skip interim responses (1xx).

The HTTP client of the standard library, on which boto3 builds, skips only status 100. It takes 102 and 103 for the
response, and the real one then answers the next request on the connection: a row is "missing", or is the row of
another request.
"""

from __future__ import annotations

from http.client import HTTPException, HTTPResponse
from typing import Any, Final

_INTERIM_RESPONSES_MAX: Final = 100


class FinalResponse(HTTPResponse):
    """The first response that is not an interim one."""

    def begin(self) -> None:
        """Read the head."""
        super().begin()
        for _ in range(_INTERIM_RESPONSES_MAX):
            if self.status >= 200:
                return
            if self.status == 101:
                raise HTTPException("the server switched to another protocol, which was not requested")
            self.headers = None  # type: ignore[assignment] # otherwise `begin` does nothing
            super().begin()
        raise HTTPException(f"the server sent more than {_INTERIM_RESPONSES_MAX} interim responses")


def skip_interim_responses(client: Any) -> None:
    """Make all connections of a new boto3 client skip interim responses."""
    try:
        pools = client._endpoint.http_session._pool_classes_by_scheme  # noqa: SLF001 - there is no public access
    except AttributeError:
        return  # an unknown version of botocore
    for scheme, pool in pools.items():
        connection = type("FinalResponseConnection", (pool.ConnectionCls,), {"response_class": FinalResponse})
        pools[scheme] = type("FinalResponsePool", (pool,), {"ConnectionCls": connection})
