"""The signature of direct calls is botocore's."""

from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from leasehold.adapters.aws.signature_v4 import Signatory, sign_post


@pytest.mark.parametrize("token", [None, "a/token+with=characters"])
@pytest.mark.parametrize("url", ["https://kinesis.eu-west-1.amazonaws.com/", "http://127.0.0.1:4567/"])
@pytest.mark.parametrize("body", [b"{}", b'{"ShardIterator":"AAAA"}', bytes(range(256))])
def test_a_signature_is_the_one_of_botocore(token: str | None, url: str, body: bytes) -> None:
    """At the time at which botocore has signed, every header is equal."""
    headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "Kinesis_20131202.GetRecords"}
    request = AWSRequest("POST", url, headers=dict(headers), data=body)
    SigV4Auth(Credentials("key", "secret", token), "kinesis", "eu-west-1").add_auth(request)
    theirs = dict(request.headers.items())
    signatory = Signatory("key", "secret", token, "eu-west-1", "kinesis")
    sign_post(urlsplit(url), headers, body, signatory, theirs["X-Amz-Date"])
    assert headers == theirs


def test_a_signatory_does_not_show_its_secrets() -> None:
    """A traceback or a log line may contain it."""
    text = repr(Signatory("key", "hidden-secret", "hidden-token", "eu-west-1", "kinesis"))
    assert "hidden" not in text
    assert "eu-west-1" in text
