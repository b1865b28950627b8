"""Signs a POST request by AWS Signature Version 4, for requests of one form that are sent hundreds of times a second.

botocore signs any request, which takes longer than all the rest of a small call. The headers here are fixed, and a test
compares the result with botocore's.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import SplitResult

from leasehold.adapters.aws.async_http import host_header

_ALGORITHM: Final = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Signatory:
    """Who signs, and for which region and service."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)
    region: str
    service: str


def sign_post(
    to: SplitResult, headers: dict[str, str], body: bytes, signatory: Signatory, time_text: str
) -> None:
    """Add the date, the token and the signature to the headers of a request to the root path.

    `time_text` is the time of the request, such as 20240607T010203Z. All given headers are signed, and Host.
    """
    headers["X-Amz-Date"] = time_text
    if signatory.token is not None:
        headers["X-Amz-Security-Token"] = signatory.token
    signed = sorted([("host", host_header(to)), *((name.lower(), text) for name, text in headers.items())])
    names = ";".join([name for name, _ in signed])
    lines = "".join([f"{name}:{text}\n" for name, text in signed])
    canonical = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    scope = f"{time_text[:8]}/{signatory.region}/{signatory.service}/aws4_request"
    text = f"{_ALGORITHM}\n{time_text}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = _mac(_signing_key(signatory, time_text[:8]), text).hex()
    headers["Authorization"] = (
        f"{_ALGORITHM} Credential={signatory.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )


@lru_cache(maxsize=8)
def _signing_key(signatory: Signatory, day: str) -> bytes:
    key = f"AWS4{signatory.secret_key}".encode()
    for part in (day, signatory.region, signatory.service, "aws4_request"):
        key = _mac(key, part)
    return key


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
