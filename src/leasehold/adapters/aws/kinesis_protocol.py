"""Decides in which encoding GetRecords is requested: CBOR, as the Java SDK does, or JSON, as boto3 does.

CBOR has the data of a record as bytes, without base64, so a page is a quarter smaller and takes less time to decode.
Only the native decoder reads it: decoded in Python, it takes twice as long as JSON. Kinesis accepts both, but not every
server does. So a refusal leads to the same request in JSON, and if that succeeds, JSON is used for a while. After a
timeout, the caller's next attempt is in JSON if the server has never sent a page in CBOR: it may hang on CBOR.
"""

from __future__ import annotations

from typing import Final

from leasehold.adapters.aws import cbor
from leasehold.adapters.aws.http_response import Response
from leasehold.config.connection import KinesisProtocol
from leasehold.errors import ConfigError

# A page in JSON may have been the fault of a moment. CBOR is tried again after this time.
JSON_FOR_S: Final = 3_600.0

_REFUSED_STATUS: Final = frozenset({406, 415})
_REFUSED_CODES: Final = frozenset(
    {"SerializationException", "UnknownOperationException", "UnsupportedMediaTypeException"}
)


class ProtocolChoice:
    """The encoding of the requests for one stream, and what the responses have shown about its server."""

    def __init__(self, wanted: KinesisProtocol, *, is_cbor_readable: bool) -> None:
        if wanted is KinesisProtocol.CBOR and not is_cbor_readable:
            raise ConfigError(
                "kinesis_protocol='cbor' needs the native decoder: install leasehold-native and pyarrow, do not set "
                "LEASEHOLD_NATIVE=0, or set kinesis_protocol to 'auto'"
            )
        self._wanted = wanted
        self._is_cbor_readable = is_cbor_readable
        self.has_sent_cbor = False  # whether the server has sent a page in CBOR
        self._is_doubtful = False  # whether the server may hang on CBOR
        self._json_until_s = float("-inf")

    def is_cbor_next(self, now_s: float) -> bool:
        """Whether the next request is in CBOR. `now_s` is a monotonic time."""
        if self._wanted is KinesisProtocol.AUTO:
            return self._is_cbor_readable and now_s >= self._json_until_s
        return self._wanted is KinesisProtocol.CBOR

    def is_refusal(self, response: Response, code: str) -> bool:
        """Whether an error means that the server does not understand CBOR. `code` is AWS's error code.

        Some servers only say "invalid" or fail. So until a server has sent a page in CBOR, every error in another
        format than CBOR is a refusal: the request in JSON shows whether it is.
        """
        if not self.may_repeat_in_json:
            return False
        if response.status in _REFUSED_STATUS or code in _REFUSED_CODES:
            return True
        return not self.has_sent_cbor and not is_cbor(response)

    def is_refused_by_silence(self, error: BaseException | None) -> bool:
        """Whether a closed connection may mean that the server has failed on CBOR. A timeout only leads to doubt."""
        return self.may_repeat_in_json and not self.has_sent_cbor and isinstance(error, ConnectionError)

    def note_silence(self, error: BaseException | None) -> None:
        """Remember that a request in CBOR had no response in time."""
        if self.may_repeat_in_json and not self.has_sent_cbor and isinstance(error, TimeoutError):
            self._is_doubtful = True

    def take_doubt(self) -> bool:
        """Whether one request is in JSON because the one before may have failed on CBOR.

        If that request fails too, CBOR was not the cause, and the next one is in CBOR again.
        """
        is_doubtful, self._is_doubtful = self._is_doubtful, False
        return is_doubtful

    @property
    def may_repeat_in_json(self) -> bool:
        """Whether a page that is malformed may be requested again in JSON."""
        return self._wanted is KinesisProtocol.AUTO

    def note_page(self, response: Response, now_s: float) -> None:
        """Remember the encoding of a page that was requested in CBOR."""
        if is_cbor(response):
            self.has_sent_cbor, self._is_doubtful = True, False
        elif not self.has_sent_cbor:
            self.return_to_json(now_s)

    def return_to_json(self, now_s: float) -> None:
        """Use JSON for a while: the server has answered a request in JSON that it had refused in CBOR."""
        self._json_until_s = now_s + JSON_FOR_S


def is_cbor(response: Response) -> bool:
    """Whether the response says that it is CBOR."""
    return response.content_type.partition(";")[0].strip().lower() == cbor.CONTENT_TYPE
