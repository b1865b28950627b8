"""Prepared requests are prepared again when the credentials or the endpoint change."""

import asyncio
from dataclasses import replace

import pytest
from botocore.credentials import Credentials

from leasehold.adapters.aws.clients import AwsAccess, kinesis_client
from leasehold.adapters.aws.direct_calls import GET_RECORDS
from leasehold.adapters.aws.request_signing import open_signer


def test_a_request_has_the_credentials_and_the_endpoint_of_its_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Credentials of a role are renewed, and an account id may lead to another endpoint."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "FIRSTKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    client = kinesis_client(AwsAccess(region="us-east-1", endpoint_url="http://127.0.0.1:4567"))
    signer = open_signer(client)
    assert signer is not None
    route = asyncio.run(signer.find_route(GET_RECORDS, {}))
    assert b"Credential=FIRSTKEY/" in signer.request(GET_RECORDS, route, b"{}")
    signer._credentials = Credentials("SECONDKEY", "secret", "token")
    renewed = signer.request(GET_RECORDS, route, b"{}")
    assert b"Credential=SECONDKEY/" in renewed
    assert b"X-Amz-Security-Token: token\r\n" in renewed
    assert b"Host: 127.0.0.1:4567\r\n" in renewed
    elsewhere = replace(route, url="http://127.0.0.1:9/")
    assert b"Host: 127.0.0.1:9\r\n" in signer.request(GET_RECORDS, elsewhere, b"{}")
