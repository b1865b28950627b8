"""What AWS and the way to it can answer, in our own words. Every adapter to AWS translates errors here."""

from __future__ import annotations

from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from leasehold.errors import (
    ConfigError,
    IteratorExpiredError,
    LeaseholdError,
    NotFoundError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)

_KINDS: Final[dict[str, type[ServiceError]]] = {
    "ExpiredIteratorException": IteratorExpiredError,
    "LimitExceededException": ThrottledError,
    "ProvisionedThroughputExceededException": ThrottledError,
    "RequestLimitExceeded": ThrottledError,
    "ThrottlingException": ThrottledError,
    "ResourceNotFoundException": NotFoundError,
    "InternalFailure": UnavailableError,
    "InternalServerError": UnavailableError,
    "InternalServerErrorException": UnavailableError,
    "RequestTimeout": UnavailableError,
    "ServiceUnavailable": UnavailableError,
    "ServiceUnavailableException": UnavailableError,
    # Another transaction held the row; nothing of this one happened.
    "TransactionConflictException": ThrottledError,
    "TransactionInProgressException": ThrottledError,
}

_DENIED: Final = frozenset({"AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException"})


def error_code(error: ClientError) -> str:
    """AWS's name for what went wrong."""
    details: dict[str, Any] = error.response.get("Error", {})
    return str(details.get("Code", ""))


def translate_error(error: Exception, doing: str) -> LeaseholdError:
    """The error to raise in place of boto3's; `doing` says what was tried, and on what."""
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigError(
            f"{doing}: {error}; configure credentials as for any AWS tool (profile, role, variables)"
        )
    if isinstance(error, ClientError):
        return _answered(error, doing)
    assert isinstance(error, BotoCoreError), error
    return UnavailableError(f"{doing}: no answer ({error})")


def _answered(error: ClientError, doing: str) -> ServiceError:
    code = error_code(error)
    message = str(error.response.get("Error", {}).get("Message", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _KINDS:
        return _KINDS[code](f"{doing}: {code}: {message}")
    if status >= 500:
        return UnavailableError(f"{doing}: {code or status}: {message}")
    if code in _DENIED:
        return ServiceError(f"{doing}: {code}: {message}; check the credentials and the policy of this role")
    return ServiceError(f"{doing}: {code}: {message}")
