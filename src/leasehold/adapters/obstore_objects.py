"""Opens the object store at a URL: S3, Google Cloud Storage, Azure or memory through obstore, or a folder.

No other module uses obstore and its errors.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from botocore.exceptions import BotoCoreError, NoCredentialsError

from leasehold.adapters.aws.clients import AwsAccess, aws_session, has_credentials, resolve_s3_endpoint
from leasehold.adapters.folder_objects import FolderObjects, open_folder
from leasehold.errors import ConfigError, ServiceError, UnavailableError
from leasehold.ports import Created, Exists, ObjectStore, StoredObject

Put = Callable[[str, bytes], Awaitable[object]]

_SCHEMES: Final = frozenset(
    {"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https", "memory"}
)
_EXPECTED: Final = (
    "expected s3://bucket/prefix, gs://bucket/prefix, az://account/container/prefix or a folder"
)

_LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_DENIED: Final = re.compile(r"status code: 40[13]\b")
_MISSING: Final = re.compile(r"status code: 404\b")
_LIST_PAGE_SIZE: Final = 1_000  # the page size of S3

# botocore renews credentials ten minutes before they expire. Credentials that are kept longer may be refused.
_CREDENTIALS_KEPT_FOR: Final = timedelta(minutes=5)
# The archive retries by itself, so obstore reports a failure soon.
_RETRIES: Final[Any] = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}


def open_object_store(
    url: str, access: AwsAccess, *, setting: str, extra: str, make_folder: bool = True
) -> ObjectStore:
    """The store at a URL such as `s3://bucket/prefix`, or in a folder, which is created if it is missing.

    `setting` is the name of the setting that holds the URL, `extra` the extra that has to be installed.
    """
    folder = _open_folder(url, setting, make_folder=make_folder)
    return folder or ObstoreObjects(_open_obstore(url, access, setting, extra), url)


def open_put(url: str, access: AwsAccess, *, setting: str, extra: str) -> Put:
    """The function that creates or replaces an object of the store at a URL. It raises the errors of the store."""
    folder = _open_folder(url, setting, make_folder=True)
    put: Put = folder.put if folder else _open_obstore(url, access, setting, extra).put_async
    return put


def check_store_url(url: str, setting: str) -> None:
    """Raise ConfigError if a text names neither a folder nor an object store."""
    if not url.strip():
        raise ConfigError(f"{setting} is empty: {_EXPECTED}")
    scheme, has_scheme, location = url.partition("://")
    if not has_scheme:
        return
    if scheme == "file":
        if location.partition("/")[0] not in {"", "localhost"}:
            raise ConfigError(f"{setting}={url!r}: expected file:///folder, a folder of this machine")
    elif scheme.lower() not in _SCHEMES or (scheme.lower() != "memory" and not urlsplit(url).netloc):
        raise ConfigError(f"{setting}={url!r}: {_EXPECTED}")


def _open_folder(url: str, setting: str, *, make_folder: bool) -> FolderObjects | None:
    """The store in the folder that a URL names. None: the URL names an object store."""
    check_store_url(url, setting)
    scheme, has_scheme, location = url.partition("://")
    if has_scheme and scheme != "file":
        return None
    path = location.partition("/")[2]
    try:
        folder = Path(f"/{unquote(path)}") if has_scheme else Path(url).absolute()
        return open_folder(folder, make_folder=make_folder)
    except (OSError, ValueError) as error:
        if isinstance(error, NotADirectoryError):
            remedy = "check the path, or choose another one" if make_folder else "check the path"
        elif make_folder:
            remedy = (
                "check the path, and that this user may create and write the folder, or choose another one"
            )
        else:
            remedy = "check the path, and that this user may read the folder"
        raise ConfigError(f"{setting}={url!r}: {_first_line(error)}; {remedy}") from error


def _open_obstore(url: str, access: AwsAccess, setting: str, extra: str) -> Any:
    try:
        from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra that may be missing
        from obstore.store import from_url  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{setting}={url!r}: obstore is not installed: pip install 'leasehold[{extra}]'"
        ) from error
    scheme, _, location = url.partition("://")
    scheme = scheme.lower()
    url = f"{scheme}://{location}"
    try:
        if scheme == "memory":
            return from_url(url)
        s3: Any = _s3_options(access, urlsplit(url).netloc) if scheme in {"s3", "s3a"} else {}
        return from_url(url, retry_config=_RETRIES, **s3)
    except BotoCoreError as error:
        raise ConfigError(
            f"{setting}={url!r}: {error}; configure region, profile and credentials as for any AWS tool"
        ) from error
    except (BaseError, ValueError, OSError) as error:
        raise ConfigError(f"{setting}={url!r}: {_first_line(error)}") from error


def _s3_options(access: AwsAccess, bucket: str) -> dict[str, Any]:
    from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - an extra that may be missing

    session = aws_session(access)
    options: dict[str, Any] = {}
    if access.endpoint_url is not None:
        # Not AWS: the endpoint may be plain HTTP, and does not support bucket names in host names.
        options |= {"endpoint": access.endpoint_url, "client_options": {"allow_http": True}}
        if not has_credentials(session) and urlsplit(access.endpoint_url).hostname in _LOOPBACK_HOSTS:
            return options | {"access_key_id": "local", "secret_access_key": "local"}
    elif session.region_name is not None:
        options |= _endpoint_options(resolve_s3_endpoint(access, bucket), bucket)
    if not has_credentials(session):
        raise NoCredentialsError
    return options | {"credential_provider": Boto3CredentialProvider(session, ttl=_CREDENTIALS_KEPT_FOR)}


def _endpoint_options(url: str, bucket: str) -> dict[str, Any]:
    """The options for an endpoint of a bucket. obstore knows no FIPS, no dual stack, and one partition of AWS only.

    >>> _endpoint_options("https://logs.s3-fips.us-gov-west-1.amazonaws.com", "logs")["virtual_hosted_style_request"]
    True
    >>> _endpoint_options("http://127.0.0.1:9000/logs", "logs")["endpoint"]
    'http://127.0.0.1:9000'
    """
    without_bucket = url.removesuffix(f"/{bucket}")
    return {
        "endpoint": without_bucket,
        "virtual_hosted_style_request": without_bucket == url,
        "client_options": {"allow_http": url.startswith("http://")},
    }


class ObstoreObjects(ObjectStore):
    """A store that was opened by obstore. Error messages call it `location`."""

    def __init__(self, store: Any, location: str) -> None:
        self._store = store
        self._location = location

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        """Create an object in one request, unless one with that name exists."""
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415 - its presence was checked when the store was opened

        try:
            # In one request: a multipart upload would replace an existing object.
            await self._store.put_async(key, body, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return Exists()
        except Exception as error:
            raise self._translate_error("put", key, error) from error
        return Created()

    async def size(self, key: str) -> int | None:
        """The size of an object in bytes."""
        try:
            return int((await self._store.head_async(key))["size"])
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._translate_error("head", key, error) from error

    async def get(self, key: str) -> bytes | None:
        """The content of an object."""
        try:
            return bytes(await (await self._store.get_async(key)).bytes_async())
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._translate_error("get", key, error) from error

    async def delete(self, key: str) -> None:
        """Delete an object."""
        try:
            await self._store.delete_async(key)
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._translate_error("delete", key, error) from error

    async def list_after(
        self, offset: str, *, prefix: str = ""
    ) -> AsyncGenerator[Sequence[StoredObject], None]:
        """Objects page by page, as the store returns them."""
        try:
            listing = self._store.list(
                prefix=prefix or None, offset=offset or None, chunk_size=_LIST_PAGE_SIZE
            )
            async for page in listing:
                yield [
                    StoredObject(each["path"], each["size"], int(each["last_modified"].timestamp() * 1000))
                    for each in page
                ]
        except Exception as error:
            raise self._translate_error("list", offset, error) from error

    def _translate_error(self, operation: str, key: str, error: Exception) -> Exception:
        """The error to raise instead of obstore's. Errors that a retry cannot fix are ServiceErrors."""
        from obstore.exceptions import (  # noqa: PLC0415 - its presence was checked when the store was opened
            BaseError,
            NotSupportedError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        # obstore raises the built-in NotImplementedError for a store that cannot create objects only if absent.
        if not isinstance(error, BaseError | OSError | NotImplementedError):
            return error  # a programming error
        what = f"{operation} {key} in {self._location}" if key else f"{operation} {self._location}"
        message = f"{what}: {_first_line(error)}"
        # A missing object is no error of a listing and of a put, so it is the bucket that is missing.
        if operation in {"list", "put"} and (
            isinstance(error, FileNotFoundError) or _MISSING.search(message)
        ):
            return ServiceError(
                f"{what}: the bucket or container does not exist; create it, or check the URL"
            )
        # obstore raises a general error for a listing, with the status only in its text.
        is_denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        if is_denied or _DENIED.search(message):
            return ServiceError(f"{message}; check the credentials and the permissions for this location")
        if isinstance(error, NotSupportedError | NotImplementedError):
            return ServiceError(f"{message}; the archive needs a store that creates objects only if absent")
        return UnavailableError(message)


def _first_line(error: Exception) -> str:
    """The first line of an error, which says what happened. obstore adds many more lines."""
    return str(error).partition("\n")[0] or type(error).__name__
