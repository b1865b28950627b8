"""Signs a POST request by AWS Signature Version 4, for requests of one form that are sent hundreds of times a second.

botocore signs any request, which takes longer than all the rest of a small call. The headers here are fixed, and a test
compares the result with botocore's.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import SplitResult

from leasehold.adapters.aws.async_http import host_header, printable_value, request_head

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_DATE: Final = "X-Amz-Date"


@dataclass(frozen=True, slots=True)
class Signatory:
    """Who signs, and for which region and service."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)
    region: str
    service: str


@dataclass(frozen=True, slots=True)
class PostForm:
    """What all requests with the same headers have in common, apart from their date and body."""

    before_date: str = field(repr=False)  # of the canonical request, which may contain a token
    after_date: str = field(repr=False)
    names: str  # of the signed headers
    signatory: Signatory

    def authorization(self, body: bytes, time_text: str) -> str:
        """The value of the header Authorization. `time_text` is the time of the request, such as 20240607T010203Z."""
        signatory, day = self.signatory, time_text[:8]
        canonical = f"{self.before_date}{time_text}{self.after_date}{hashlib.sha256(body).hexdigest()}"
        scope = f"{day}/{signatory.region}/{signatory.service}/aws4_request"
        text = f"{_ALGORITHM}\n{time_text}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = _mac(_signing_key(signatory, day), text).hex()
        return (
            f"{_ALGORITHM} Credential={signatory.access_key}/{scope}, SignedHeaders={self.names}, "
            f"Signature={signature}"
        )


def post_form(to: SplitResult, headers: Mapping[str, str], signatory: Signatory) -> PostForm:
    """The form of requests to the root path with these headers, without the date. All of them are signed, and Host."""
    dated = {**headers, _DATE: ""}
    signed = sorted([("host", host_header(to)), *((name.lower(), text) for name, text in dated.items())])
    names = ";".join(name for name, _ in signed)
    at = [name for name, _ in signed].index(_DATE.lower())
    before = "".join(f"{name}:{text}\n" for name, text in signed[:at])
    after = "".join(f"{name}:{text}\n" for name, text in signed[at + 1 :])
    return PostForm(f"POST\n/\n\n{before}{_DATE.lower()}:", f"\n{after}\n{names}\n", names, signatory)


def sign_post(
    to: SplitResult, headers: dict[str, str], body: bytes, signatory: Signatory, time_text: str
) -> None:
    """Add the date, the token and the signature to the headers of a request to the root path.

    `time_text` is the time of the request, such as 20240607T010203Z. All given headers are signed, and Host.
    """
    add_token(headers, signatory)
    form = post_form(to, headers, signatory)
    headers[_DATE] = time_text
    headers["Authorization"] = form.authorization(body, time_text)


def add_token(headers: dict[str, str], signatory: Signatory) -> None:
    """Add the token of temporary credentials, which is signed, too."""
    if signatory.token is not None:
        headers["X-Amz-Security-Token"] = signatory.token


class PreparedPost:
    """Builds signed requests that differ only in their date and body: what is the same is checked and written once."""

    def __init__(self, to: SplitResult, headers: Mapping[str, str], signatory: Signatory, agent: str) -> None:
        signed = dict(headers)
        add_token(signed, signatory)
        self._form = post_form(to, signed, signatory)
        for part in (signatory.access_key, signatory.region, signatory.service, self._form.names):
            printable_value("Authorization", part)
        self._head = request_head(to, {**signed, "User-Agent": agent})

    def request(self, body: bytes, time_text: str) -> bytes:
        """The whole request, as it is sent at `time_text`, such as 20240607T010203Z."""
        authorization = self._form.authorization(body, time_text)
        return (
            f"{self._head}{_DATE}: {time_text}\r\nAuthorization: {authorization}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode("latin-1") + body


@lru_cache(maxsize=8)
def _signing_key(signatory: Signatory, day: str) -> bytes:
    key = f"AWS4{signatory.secret_key}".encode()
    for part in (day, signatory.region, signatory.service, "aws4_request"):
        key = _mac(key, part)
    return key


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
