"""The two calls that a worker makes all the time, in half the processor time: signed by botocore, sent by urllib3,
with none of the layers between.

An idle worker asks every shard once a second (GetRecords), and every lease is renewed every few seconds (UpdateItem);
little else costs it anything. Measured here: an empty GetRecords takes 1.3 ms through boto3 and 0.8 ms this way. Used
only where boto3 would do nothing else with the call: no proxy, no client certificate, the region's own endpoint.
Everything else goes through boto3 as ever. It never retries: whoever calls does, and knows better when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
import urllib3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError, HTTPClientError
from botocore.httpsession import get_cert_path

from leasehold.adapters.row_json import row_from_members

Send = Callable[[bytes], bytes]


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


def lean_call(client: Any, operation: Operation) -> Send | None:
    """A function from the body of a request to the body of the answer; None where boto3 has to do it."""
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
    return _Lean(operation, client, url, credentials, get_cert_path(verify)).send


class _Lean:
    """Connections to one endpoint; used by several threads at once, like a client."""

    def __init__(
        self, operation: Operation, client: Any, url: str, credentials: Any, certificates: str
    ) -> None:
        self._operation = operation
        config = client.meta.config
        self._url = url
        self._region = client.meta.region_name
        self._credentials = credentials
        self._user_agent = config.user_agent
        self._pool = urllib3.PoolManager(
            maxsize=config.max_pool_connections,
            timeout=urllib3.Timeout(connect=config.connect_timeout, read=config.read_timeout),
            retries=False,
            cert_reqs="CERT_REQUIRED",
            ca_certs=certificates,
        )

    def send(self, body: bytes) -> bytes:
        """One call; the body of a good answer. Raises what boto3 would."""
        request = AWSRequest("POST", self._url, headers=self._headers(), data=body)
        signer = SigV4Auth(self._credentials.get_frozen_credentials(), self._operation.service, self._region)
        signer.add_auth(request)
        try:
            answer = self._pool.request(
                "POST", self._url, headers=dict(request.headers.items()), body=request.data, redirect=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise HTTPClientError(error=error) from error
        if answer.status != 200:
            raise _refusal(self._operation.name, answer.status, answer.data)
        return answer.data

    def _headers(self) -> Mapping[str, str]:
        return {
            "Content-Type": self._operation.content_type,
            "User-Agent": self._user_agent,
            "X-Amz-Target": self._operation.target,
        }


def _refusal(operation: str, status: int, body: bytes) -> ClientError:
    """The error in the form that boto3 gives it."""
    try:
        members = orjson.loads(body)
        kind, message = (
            str(members.get("__type", "")),
            str(members.get("message", members.get("Message", ""))),
        )
        # DynamoDB sends the row along that a condition did not hold for.
        more = {"Item": row_from_members(members["Item"])} if "Item" in members else {}
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
