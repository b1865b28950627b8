"""Translates errors of boto3 into errors of `leasehold.errors`. Every AWS adapter uses it."""

from __future__ import annotations

from typing import Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointProviderError,
    NoCredentialsError,
    PartialCredentialsError,
)

from leasehold.errors import (
    AccessDeniedError,
    ConfigError,
    InvalidArgumentError,
    IteratorExpiredError,
    LeaseholdError,
    NotFoundError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)

_ERROR_TYPES: Final[dict[str, type[ServiceError]]] = {
    "ExpiredIteratorException": IteratorExpiredError,
    "LimitExceededException": ThrottledError,
    "ProvisionedThroughputExceededException": ThrottledError,
    "RequestLimitExceeded": ThrottledError,
    "KMSThrottlingException": ThrottledError,
    "ThrottlingException": ThrottledError,
    "ResourceNotFoundException": NotFoundError,
    "InvalidArgumentException": InvalidArgumentError,
    "InternalFailure": UnavailableError,
    "InternalFailureException": UnavailableError,
    "InternalServerError": UnavailableError,
    "InternalServerErrorException": UnavailableError,
    "RequestTimeout": UnavailableError,
    "ServiceUnavailable": UnavailableError,
    "ServiceUnavailableException": UnavailableError,
    # Another transaction was using the row; this one had no effect.
    "TransactionConflictException": ThrottledError,
    "TransactionInProgressException": ThrottledError,
}

# By the first word of AWS's message, which names what does not exist.
_NOT_FOUND_REMEDIES: Final = {
    "Stream": "create the stream, or check its name, the account, the region and the endpoint",
    "Consumer": "`leasehold consumers list` shows the consumers of a stream",
    "Shard": "check the stream, the region and the endpoint; `leasehold explain` compares leases and shards",
}
_NOT_FOUND_REMEDY: Final = "check the name, the account, the region and the endpoint"

_DENIED: Final = frozenset(
    {
        "AccessDeniedException",
        "ExpiredTokenException",
        "KMSAccessDeniedException",
        "UnrecognizedClientException",
    }
)


def error_code(error: ClientError) -> str:
    """AWS's error code."""
    details: dict[str, Any] = error.response.get("Error", {})
    return str(details.get("Code", ""))


def translate_error(error: Exception, operation: str) -> LeaseholdError:
    """The error to raise instead of boto3's. `operation` names the operation and its object for the message."""
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigError(
            f"{operation}: {error}; configure credentials as for any AWS tool (profile, role, variables)"
        )
    if isinstance(error, EndpointProviderError):
        return ConfigError(
            f"{operation}: {error}; check the region, and whether FIPS, dual stack or an account is required"
        )
    if isinstance(error, ClientError):
        return _translate_response(error, operation)
    assert isinstance(error, BotoCoreError), error
    return UnavailableError(
        f"{operation}: no response ({error}); check the endpoint, the region and the network and, for a server on this "
        "machine, whether it runs"
    )


def _translate_response(error: ClientError, operation: str) -> ServiceError:
    code = error_code(error)
    message = str(error.response.get("Error", {}).get("Message", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if _ERROR_TYPES.get(code) is NotFoundError:
        remedy = _NOT_FOUND_REMEDIES.get(message.partition(" ")[0], _NOT_FOUND_REMEDY)
        return NotFoundError(f"{operation}: {code}: {message.removesuffix('.')}; {remedy}")
    if code in _ERROR_TYPES:
        return _ERROR_TYPES[code](f"{operation}: {code}: {message}")
    if status >= 500:
        return UnavailableError(f"{operation}: {code or status}: {message}")
    if code in _DENIED:
        return AccessDeniedError(
            f"{operation}: {code}: {message}; check the credentials and the policy of this role"
        )
    return ServiceError(f"{operation}: {code}: {message}")
