"""Object stores through obstore: S3, Google Cloud Storage, Azure, a folder, or memory, chosen by URL. The only module
that knows obstore and its errors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from leasehold.adapters.aws.clients import AwsAccess, aws_session
from leasehold.errors import ConfigError, ServiceError, UnavailableError
from leasehold.ports import Created, Exists, ObjectStore, StoredObject

_LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_LIST_PORTION: Final = 1_000  # what S3 returns at once

# botocore renews credentials ten minutes before they end; what is kept longer than that may be refused.
_CREDENTIALS_KEPT_FOR: Final = timedelta(minutes=5)
# Whoever writes an archive tries again anyway, and should hear soon that something is wrong.
_RETRIES: Final[Any] = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}


def open_object_store(
    url: str, access: AwsAccess, *, setting: str, extra: str, make_folder: bool = True
) -> ObjectStore:
    """The store at a URL such as `s3://bucket/prefix`, or in a folder, which is made if it is missing.

    `setting` is what the user calls the URL, `extra` what has to be installed for it.
    """
    return ObstoreObjects(
        open_obstore(url, access, setting=setting, extra=extra, make_folder=make_folder), url
    )


def open_obstore(url: str, access: AwsAccess, *, setting: str, extra: str, make_folder: bool = True) -> Any:
    """The same as obstore sees it."""
    try:
        from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra that may be missing
        from obstore.store import LocalStore, from_url  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{setting}={url!r}: obstore is not installed: pip install 'leasehold[{extra}]'"
        ) from error
    scheme = url.partition("://")[0] if "://" in url else ""
    try:
        if not scheme:
            return LocalStore(Path(url).absolute(), mkdir=make_folder)
        if scheme == "file":
            return LocalStore.from_url(url, mkdir=make_folder)
        if scheme == "memory":
            return from_url(url)
        s3: Any = _s3_options(access) if scheme in {"s3", "s3a"} else {}
        return from_url(url, retry_config=_RETRIES, **s3)
    except (BaseError, ValueError, OSError) as error:
        raise ConfigError(f"{setting}={url!r}: {_first_line(error)}") from error


def _s3_options(access: AwsAccess) -> dict[str, Any]:
    from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - an extra that may be missing

    session = aws_session(access)
    options: dict[str, Any] = {}
    if access.endpoint_url is not None:
        # A store of one's own, not AWS: it may be plain HTTP, and knows no names of buckets in host names.
        options |= {"endpoint": access.endpoint_url, "client_options": {"allow_http": True}}
        if session.get_credentials() is None and urlsplit(access.endpoint_url).hostname in _LOOPBACK_HOSTS:
            return options | {"access_key_id": "local", "secret_access_key": "local"}
    return options | {"credential_provider": Boto3CredentialProvider(session, ttl=_CREDENTIALS_KEPT_FOR)}


class ObstoreObjects(ObjectStore):
    """A store that obstore has opened. `place` is what error messages call it."""

    def __init__(self, store: Any, place: str) -> None:
        self._store = store
        self._place = place

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        """Write an object in one request, unless there is one of that name."""
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415 - it was found when the store was opened

        try:
            # In one request: an upload in parts would replace what is there.
            await self._store.put_async(key, body, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return Exists()
        except Exception as error:
            raise self._translated("put", key, error) from error
        return Created()

    async def size(self, key: str) -> int | None:
        """How many bytes an object has."""
        try:
            return int((await self._store.head_async(key))["size"])
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._translated("head", key, error) from error

    async def get(self, key: str) -> bytes | None:
        """An object's content."""
        try:
            return bytes(await (await self._store.get_async(key)).bytes_async())
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._translated("get", key, error) from error

    async def list_after(self, offset: str, *, prefix: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        """Objects in portions, as the store sends them."""
        try:
            listing = self._store.list(prefix=prefix or None, offset=offset or None, chunk_size=_LIST_PORTION)
            async for portion in listing:
                yield [StoredObject(each["path"], each["size"]) for each in portion]
        except Exception as error:
            raise self._translated("list", offset, error) from error

    def _translated(self, operation: str, key: str, error: Exception) -> Exception:
        """Ours for theirs. What no second try can mend is told apart."""
        from obstore.exceptions import (  # noqa: PLC0415 - it was found when the store was opened
            BaseError,
            NotSupportedError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        if not isinstance(error, BaseError | OSError):
            return error  # a bug, not an answer
        message = f"{operation} {key} in {self._place}: {_first_line(error)}"
        if isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError):
            return ServiceError(f"{message}; check the credentials and the rights to that place")
        if isinstance(error, NotSupportedError):
            return ServiceError(f"{message}; the archive needs a store that creates objects only if absent")
        return UnavailableError(message)


def _first_line(error: Exception) -> str:
    """What happened: obstore tells the whole story of an error, in many lines, and this first."""
    return str(error).partition("\n")[0] or type(error).__name__
