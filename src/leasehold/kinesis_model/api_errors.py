"""The errors of the Kinesis API that the model returns."""

from __future__ import annotations

from enum import StrEnum

from leasehold.errors import ServiceError


class ErrorType(StrEnum):
    """Error types, spelled as in the API."""

    NOT_FOUND = "ResourceNotFoundException"
    IN_USE = "ResourceInUseException"
    INVALID_ARGUMENT = "InvalidArgumentException"
    VALIDATION = "ValidationException"
    LIMIT_EXCEEDED = "LimitExceededException"
    THROTTLED = "ProvisionedThroughputExceededException"
    ITERATOR_EXPIRED = "ExpiredIteratorException"
    TOKEN_EXPIRED = "ExpiredNextTokenException"  # noqa: S105 - an error type, no secret


class KinesisApiError(ServiceError):
    """The service refuses a well-formed request. The message names the stream or shard and the reason."""

    def __init__(self, error_type: ErrorType, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.message = message


def not_found_error(message: str) -> KinesisApiError:
    return KinesisApiError(ErrorType.NOT_FOUND, message)


def in_use_error(message: str) -> KinesisApiError:
    return KinesisApiError(ErrorType.IN_USE, message)


def invalid_argument_error(message: str) -> KinesisApiError:
    return KinesisApiError(ErrorType.INVALID_ARGUMENT, message)


def validation_error(message: str) -> KinesisApiError:
    return KinesisApiError(ErrorType.VALIDATION, message)


def limit_exceeded_error(message: str) -> KinesisApiError:
    return KinesisApiError(ErrorType.LIMIT_EXCEEDED, message)


def throttled_error(message: str) -> KinesisApiError:
    return KinesisApiError(ErrorType.THROTTLED, message)
