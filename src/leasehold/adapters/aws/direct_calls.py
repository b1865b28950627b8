"""Sends the most frequent AWS calls without boto3: signed by botocore, sent on the event loop, without threads. This
takes a quarter of the processor time.

An idle worker polls every shard once a second (GetRecords), renews every lease every few seconds (UpdateItem), and
scans all leases every few seconds (Scan); other calls are rare. Direct calls are used only where boto3 would do
nothing else with the call: no proxy, no client certificate, the regular endpoint. All other calls go through boto3.
Never retries: the caller does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError, HTTPClientError
from botocore.httpsession import get_cert_path
from urllib3.util import create_urllib3_context

from leasehold.adapters.aws.async_http import HttpEndpoint, HttpLimits
from leasehold.adapters.row_json import row_from_json_object


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


GET_RECORDS: Final = Operation("kinesis", "Kinesis_20131202.GetRecords", "application/x-amz-json-1.1")
UPDATE_ITEM: Final = Operation("dynamodb", "DynamoDB_20120810.UpdateItem", "application/x-amz-json-1.0")
SCAN: Final = Operation("dynamodb", "DynamoDB_20120810.Scan", "application/x-amz-json-1.0")


def open_direct_calls(client: Any) -> DirectCalls | None:
    """Direct calls with the endpoint, region and credentials of the client; None if boto3 has to send its calls."""
    try:
        http = client._endpoint.http_session  # noqa: SLF001 - botocore has no public access to its configuration
        credentials = client._request_signer._credentials  # noqa: SLF001 - the credentials that the client signs with
        url = f"{client.meta.endpoint_url.rstrip('/')}/"
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
    return DirectCalls(client, url, credentials, get_cert_path(verify))


class DirectCalls:
    """Calls to one AWS endpoint, from one event loop."""

    def __init__(self, client: Any, url: str, credentials: Any, certificates: str) -> None:
        config = client.meta.config
        self._url = url
        self._region = client.meta.region_name
        self._credentials = credentials
        self._user_agent = config.user_agent
        self._endpoint = HttpEndpoint(
            url,
            HttpLimits(
                connections_max=config.max_pool_connections,
                connect_s=config.connect_timeout,
                response_s=config.read_timeout,
            ),
            _tls_context(certificates) if urlsplit(url).scheme == "https" else None,
        )

    async def send(self, operation: Operation, body: bytes) -> bytes:
        """Send one call and return the body of its response. Raises the same errors as boto3."""
        try:
            response = await self._endpoint.post(await self._headers(operation, body), body)
        except OSError as error:
            raise HTTPClientError(error=str(error) or "timeout") from error
        if response.status != 200:
            raise _client_error(operation.name, response.status, response.body)
        return response.body

    def close(self) -> None:
        """Close the connections."""
        self._endpoint.close()

    async def _headers(self, operation: Operation, body: bytes) -> Mapping[str, str]:
        headers = {
            "Content-Type": operation.content_type,
            "User-Agent": self._user_agent,
            "X-Amz-Target": operation.target,
        }
        request = AWSRequest("POST", self._url, headers=headers, data=body)
        SigV4Auth(await self._frozen_credentials(), operation.service, self._region).add_auth(request)
        return dict(request.headers.items())

    async def _frozen_credentials(self) -> Any:
        # Credentials of a role are renewed from time to time, by a blocking call.
        needs_renewal = getattr(self._credentials, "refresh_needed", None)
        if needs_renewal is not None and needs_renewal():
            return await asyncio.to_thread(self._credentials.get_frozen_credentials)
        return self._credentials.get_frozen_credentials()


def _tls_context(certificates: str) -> ssl.SSLContext:
    """Verify the server's certificate and host name, as boto3 does."""
    context: ssl.SSLContext = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED)
    context.check_hostname = True
    context.load_verify_locations(certificates)
    return context


def _client_error(operation: str, status: int, body: bytes) -> ClientError:
    """The error as boto3 would raise it."""
    try:
        fields = orjson.loads(body)
        kind, message = (
            str(fields.get("__type", "")),
            str(fields.get("message", fields.get("Message", ""))),
        )
        # DynamoDB returns the row for which a condition did not hold.
        item = {"Item": row_from_json_object(fields["Item"])} if "Item" in fields else {}
    except (ValueError, AttributeError):
        kind, message, item = "", "the response is not an AWS error", {}
    return ClientError(
        {
            # Some services prefix the name with a namespace.
            "Error": {"Code": kind.rsplit("#", 1)[-1] or str(status), "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
            **item,
        },
        operation,
    )
