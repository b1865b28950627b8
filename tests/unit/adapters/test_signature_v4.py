"""The signature of direct calls is botocore's."""

from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from leasehold.adapters.aws.signature_v4 import PreparedPost, Signatory, post_form, sign_post

FIXED = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "Kinesis_20131202.GetRecords"}


@pytest.mark.parametrize("token", [None, "a/token+with=characters"])
@pytest.mark.parametrize("url", ["https://kinesis.eu-west-1.amazonaws.com/", "http://127.0.0.1:4567/"])
@pytest.mark.parametrize("body", [b"{}", b'{"ShardIterator":"AAAA"}', bytes(range(256))])
def test_a_signature_is_the_one_of_botocore(token: str | None, url: str, body: bytes) -> None:
    """At the time at which botocore has signed, every header is equal."""
    headers = dict(FIXED)
    request = AWSRequest("POST", url, headers=dict(headers), data=body)
    SigV4Auth(Credentials("key", "secret", token), "kinesis", "eu-west-1").add_auth(request)
    theirs = dict(request.headers.items())
    signatory = Signatory("key", "secret", token, "eu-west-1", "kinesis")
    sign_post(urlsplit(url), headers, body, signatory, theirs["X-Amz-Date"])
    assert headers == theirs
    prepared = PreparedPost(urlsplit(url), FIXED, signatory, "agent")
    expected = {
        **theirs,
        "User-Agent": "agent",
        "Content-Length": str(len(body)),
        "Host": urlsplit(url).netloc,
    }
    for _ in range(2):  # a prepared request keeps nothing of the one before
        assert parsed_request(prepared.request(body, theirs["X-Amz-Date"])) == (expected, body)
        prepared.request(b"another", "20240607T010203Z")


@pytest.mark.parametrize("name", ["access_key", "region", "service", "token"])
def test_a_signatory_cannot_add_headers(name: str) -> None:
    """A line end in a credential would end its header. The error does not quote it."""
    parts = {"access_key": "key", "region": "eu-west-1", "service": "kinesis", "token": "token"}
    signatory = Signatory(secret_key="secret", **{**parts, name: "hidden\r\nX-Other: 1"})
    with pytest.raises(ValueError, match="printable ASCII") as raised:
        PreparedPost(urlsplit("http://127.0.0.1:4567/"), FIXED, signatory, "agent")
    assert "hidden" not in str(raised.value)


def parsed_request(request: bytes) -> tuple[dict[str, str], bytes]:
    """The headers and the body of a POST request to the root path."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    assert first == "POST / HTTP/1.1"
    return dict(line.split(": ", 1) for line in lines), body


def test_a_signatory_does_not_show_its_secrets() -> None:
    """A traceback or a log line may contain it."""
    signatory = Signatory("key", "hidden-secret", "hidden-token", "eu-west-1", "kinesis")
    form = post_form(urlsplit("http://127.0.0.1/"), {"X-Amz-Security-Token": "hidden-token"}, signatory)
    text = f"{signatory} {form}"
    assert "hidden" not in text
    assert "eu-west-1" in text


def test_a_prepared_request_has_no_header_in_the_name_of_another() -> None:
    """The names are part of the signature's header."""
    signatory = Signatory("key", "secret", None, "eu-west-1", "kinesis")
    with pytest.raises(ValueError, match="printable ASCII"):
        PreparedPost(urlsplit("http://127.0.0.1:4567/"), {"X-A: 1\r\nX-B": "2"}, signatory, "agent")
