"""Signs requests that boto3 does not send: to the endpoint that botocore resolves, with the client's credentials and
region, and with verified TLS as boto3 has it.

Used only where boto3 would do nothing else with the call: no proxy, no client certificate.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from botocore.awsrequest import AWSRequest
from botocore.httpsession import get_cert_path
from urllib3.util import create_urllib3_context

from leasehold.adapters.aws.async_http import request_bytes
from leasehold.adapters.aws.signature_v4 import PreparedPost, Signatory, sign_post


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, as it is named on the wire."""

    target: str
    content_type: str

    @property
    def name(self) -> str:
        """The name without the API version."""
        return self.target.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Route:
    """Where an operation is sent to, and what else botocore determines together with the endpoint."""

    url: str
    headers: Mapping[str, str]
    signing: Mapping[str, Any]  # the context of botocore's signer: the region and the kind of the signature


def open_signer(client: Any) -> RequestSigner | None:
    """A signer with the endpoints, region and credentials of the client; None if boto3 has to send its requests."""
    try:
        http = client._endpoint.http_session  # noqa: SLF001 - botocore has no public access to its configuration
        credentials = client._request_signer._credentials  # noqa: SLF001 - the credentials that the client signs with
        verify = http._verify  # noqa: SLF001 - True, or the path of a CA bundle
        is_plain = (
            verify
            and http._cert_file is None  # noqa: SLF001
            # A proxy depends only on the scheme of the URL.
            and http._proxy_config.proxy_url_for(client.meta.endpoint_url) is None  # noqa: SLF001
            and client._resolve_endpoint_ruleset  # noqa: SLF001
        )
    except AttributeError:
        return None  # an unknown version of botocore
    if not is_plain or credentials is None:
        return None
    return RequestSigner(client, credentials, get_cert_path(verify))


class RequestSigner:
    """Signs POST requests of one client."""

    def __init__(self, client: Any, credentials: Any, certificates: str) -> None:
        self._client = client
        self._credentials = credentials
        self._certificates = certificates
        self._routes: dict[tuple[Operation, frozenset[tuple[str, str]], str | None], Route] = {}
        self._signatories: dict[int, tuple[Route, Any, Signatory]] = {}  # by the identity of the route
        # By operation, with the signatory for which they were prepared. Each route has a signatory of its own.
        self._prepared: dict[Operation, tuple[Signatory, PreparedPost]] = {}

    async def find_route(self, operation: Operation, arguments: Mapping[str, str]) -> Route:
        """The endpoint of a call, as botocore resolves it: by region, FIPS, dual stack, account and arguments.

        Not `client.meta.endpoint_url`, which is only where boto3 starts. The account is known with the credentials.
        """
        account = getattr(await self._frozen_credentials(), "account_id", None)
        key = (operation, frozenset(arguments.items()), account)
        if key not in self._routes:
            self._routes[key] = self._resolve(operation, arguments)
        return self._routes[key]

    def request(self, operation: Operation, route: Route, body: bytes) -> bytes:
        """A whole signed request, for an operation that is sent again and again."""
        signatory = self._signatory(route)
        if signatory is None:
            return request_bytes(urlsplit(route.url), self.headers(operation, route, body), body)
        known = self._prepared.get(operation)
        if known is None or known[0] is not signatory:
            prepared = PreparedPost(
                urlsplit(route.url), _fixed_headers(operation, route), signatory, self._agent
            )
            self._prepared[operation] = known = (signatory, prepared)
        return known[1].request(body, _time_text())

    def headers(self, operation: Operation, route: Route, body: bytes) -> Mapping[str, str]:
        """The headers of a request, with the signature. Host and Content-Length are the sender's."""
        headers, agent = _fixed_headers(operation, route), {"User-Agent": self._agent}
        signatory = self._signatory(route)
        if signatory is not None:
            sign_post(urlsplit(route.url), headers, body, signatory, _time_text())
            return headers | agent
        return self._headers_by_botocore(operation, route, body, headers | agent)

    @property
    def _agent(self) -> str:
        agent: str = self._client.meta.config.user_agent
        return agent

    def _signatory(self, route: Route) -> Signatory | None:
        """The keys and the scope of a signature of version 4; None if botocore has to sign."""
        signer = self._client._request_signer  # noqa: SLF001 - the only access
        version = route.signing.get("auth_type") or signer.signature_version
        if version != "v4" or urlsplit(route.url).path != "/":
            return None
        keys, scope = self._credentials.get_frozen_credentials(), route.signing.get("signing", {})
        known = self._signatories.get(id(route))
        if known is not None and known[0] is route and known[1] == keys:
            return known[2]
        signatory = Signatory(
            keys.access_key,
            keys.secret_key,
            keys.token or None,
            scope.get("region") or signer.region_name,
            scope.get("signing_name") or signer.signing_name,
        )
        self._signatories[id(route)] = (route, keys, signatory)
        return signatory

    def _headers_by_botocore(
        self, operation: Operation, route: Route, body: bytes, headers: Mapping[str, str]
    ) -> Mapping[str, str]:
        request = AWSRequest("POST", route.url, headers=headers, data=body)
        request.context.update(route.signing)
        self._client._request_signer.sign(operation.name, request)  # noqa: SLF001 - the only access
        return dict(request.headers.items())

    def tls_context(self, url: str) -> ssl.SSLContext | None:
        """A context that verifies the server's certificate and host name, as boto3 does; None for plain HTTP."""
        if urlsplit(url).scheme != "https":
            return None
        context: ssl.SSLContext = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED)
        context.check_hostname = True
        context.load_verify_locations(self._certificates)
        return context

    def _resolve(self, operation: Operation, arguments: Mapping[str, str]) -> Route:
        model = self._client.meta.service_model.operation_model(operation.name)
        signing: dict[str, Any] = {}
        url, headers, *_ = self._client._resolve_endpoint_ruleset(model, arguments, signing)  # noqa: SLF001 - the only access
        return Route(f"{url.rstrip('/')}/", headers, signing)

    async def _frozen_credentials(self) -> Any:
        # Credentials of a role are renewed from time to time, by a blocking call.
        needs_renewal = getattr(self._credentials, "refresh_needed", None)
        if needs_renewal is not None and needs_renewal():
            return await asyncio.to_thread(self._credentials.get_frozen_credentials)
        return self._credentials.get_frozen_credentials()


def _fixed_headers(operation: Operation, route: Route) -> dict[str, str]:
    return {"Content-Type": operation.content_type, "X-Amz-Target": operation.target, **route.headers}


def _time_text() -> str:
    return _text_of_second(int(time.time()))


@lru_cache(maxsize=2)
def _text_of_second(seconds: int) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))
