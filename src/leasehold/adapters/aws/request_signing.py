"""Signs requests that boto3 does not send: with the client's credentials and region, verified TLS as boto3 has it.

Used only where boto3 would do nothing else with the call: no proxy, no client certificate.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.httpsession import get_cert_path
from urllib3.util import create_urllib3_context


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one service, as it is named on the wire."""

    service: str
    target: str
    content_type: str

    @property
    def name(self) -> str:
        """The name without the API version."""
        return self.target.rpartition(".")[2]


def open_signer(client: Any, url: str) -> RequestSigner | None:
    """A signer with the region and credentials of the client; None if boto3 has to send requests to this URL."""
    try:
        http = client._endpoint.http_session  # noqa: SLF001 - botocore has no public access to its configuration
        credentials = client._request_signer._credentials  # noqa: SLF001 - the credentials that the client signs with
        verify = http._verify  # noqa: SLF001 - True, or the path of a CA bundle
        is_plain = (
            verify
            and http._cert_file is None  # noqa: SLF001
            and http._proxy_config.proxy_url_for(url) is None  # noqa: SLF001
        )
    except AttributeError:
        return None  # an unknown version of botocore
    if not is_plain or credentials is None:
        return None
    return RequestSigner(client, url, credentials, get_cert_path(verify))


class RequestSigner:
    """Signs POST requests to one URL."""

    def __init__(self, client: Any, url: str, credentials: Any, certificates: str) -> None:
        self.url = url
        self._region = client.meta.region_name
        self._user_agent = client.meta.config.user_agent
        self._credentials = credentials
        self._certificates = certificates

    async def headers(self, operation: Operation, body: bytes) -> Mapping[str, str]:
        """The headers of a request, with the signature. Host and Content-Length are the sender's."""
        headers = {
            "Content-Type": operation.content_type,
            "User-Agent": self._user_agent,
            "X-Amz-Target": operation.target,
        }
        request = AWSRequest("POST", self.url, headers=headers, data=body)
        SigV4Auth(await self._frozen_credentials(), operation.service, self._region).add_auth(request)
        return dict(request.headers.items())

    def tls_context(self) -> ssl.SSLContext | None:
        """A context that verifies the server's certificate and host name, as boto3 does; None for plain HTTP."""
        if urlsplit(self.url).scheme != "https":
            return None
        context: ssl.SSLContext = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED)
        context.check_hostname = True
        context.load_verify_locations(self._certificates)
        return context

    async def _frozen_credentials(self) -> Any:
        # Credentials of a role are renewed from time to time, by a blocking call.
        needs_renewal = getattr(self._credentials, "refresh_needed", None)
        if needs_renewal is not None and needs_renewal():
            return await asyncio.to_thread(self._credentials.get_frozen_credentials)
        return self._credentials.get_frozen_credentials()
