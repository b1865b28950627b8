"""The few calls that a worker makes all the time, at a quarter of the processor time: signed by botocore, sent on the
event loop, with neither boto3's layers nor a thread between.

An idle worker asks every shard once a second (GetRecords), renews every lease every few seconds (UpdateItem), and looks
at all leases every other second (Scan); little else costs it anything. Used only where boto3 would do nothing else with
the call: no proxy, no client certificate, the region's own endpoint. Everything else goes through boto3 as ever. It
never retries: whoever calls does, and knows better when.
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
    """One call of one service, as it is named on the wire."""

    service: str
    target: str
    content_type: str

    @property
    def name(self) -> str:
        """The name without the service's version."""
        return self.target.rpartition(".")[2]


GET_RECORDS: Final = Operation("kinesis", "Kinesis_20131202.GetRecords", "application/x-amz-json-1.1")
UPDATE_ITEM: Final = Operation("dynamodb", "DynamoDB_20120810.UpdateItem", "application/x-amz-json-1.0")
SCAN: Final = Operation("dynamodb", "DynamoDB_20120810.Scan", "application/x-amz-json-1.0")


def direct_calls(client: Any) -> DirectCalls | None:
    """The same endpoint, region and credentials as the client's; None where boto3 has to do it."""
    try:
        http = client._endpoint.http_session  # noqa: SLF001 - botocore does not say otherwise how it was set up
        credentials = client._request_signer._credentials  # noqa: SLF001 - the very ones that the client signs with
        url = f"{client.meta.endpoint_url.rstrip('/')}/"
        verify = http._verify  # noqa: SLF001 - True, or a file of certificates
        is_plain = (
            verify
            and http._cert_file is None  # noqa: SLF001
            and http._proxy_config.proxy_url_for(url) is None  # noqa: SLF001
        )
    except AttributeError:
        return None  # another version of botocore
    if not is_plain or credentials is None:
        return None
    return DirectCalls(client, url, credentials, get_cert_path(verify))


class DirectCalls:
    """One endpoint of AWS, from one event loop."""

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
            _tls(certificates) if urlsplit(url).scheme == "https" else None,
        )

    async def send(self, operation: Operation, body: bytes) -> bytes:
        """One call; the body of a good answer. Raises what boto3 would."""
        try:
            answer = await self._endpoint.post(await self._headers(operation, body), body)
        except OSError as error:
            raise HTTPClientError(error=str(error) or "it took too long") from error
        if answer.status != 200:
            raise _refusal(operation.name, answer.status, answer.body)
        return answer.body

    def close(self) -> None:
        """Give back the connections."""
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
        # Those of a role are renewed now and then, by a call that blocks.
        needs_renewal = getattr(self._credentials, "refresh_needed", None)
        if needs_renewal is not None and needs_renewal():
            return await asyncio.to_thread(self._credentials.get_frozen_credentials)
        return self._credentials.get_frozen_credentials()


def _tls(certificates: str) -> ssl.SSLContext:
    """As boto3 has it: a server proves its name with a certificate of these authorities."""
    context: ssl.SSLContext = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED)
    context.check_hostname = True
    context.load_verify_locations(certificates)
    return context


def _refusal(operation: str, status: int, body: bytes) -> ClientError:
    """The error in the form that boto3 gives it."""
    try:
        members = orjson.loads(body)
        kind, message = (
            str(members.get("__type", "")),
            str(members.get("message", members.get("Message", ""))),
        )
        # DynamoDB sends the row along that a condition did not hold for.
        more = {"Item": row_from_json_object(members["Item"])} if "Item" in members else {}
    except (ValueError, AttributeError):
        kind, message, more = "", "the answer is no error of AWS", {}
    return ClientError(
        {
            # Some services put a namespace before the name.
            "Error": {"Code": kind.rsplit("#", 1)[-1] or str(status), "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
            **more,
        },
        operation,
    )
