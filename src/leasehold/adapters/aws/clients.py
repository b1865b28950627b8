"""boto3 clients as our adapters want them: who may wait how long, and who retries.

Credentials, regions, profiles and roles are found as in any AWS tool; a profile with `role_arn` assumes that role, and
so does access with a role of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.exceptions import BotoCoreError, NoCredentialsError

from leasehold.adapters.aws.blocking import THREADS_DEFAULT
from leasehold.errors import ConfigError

_LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_LOCAL_REGION: Final = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsAccess:
    """How to reach AWS. None: as the environment says.

    A server on loopback takes any credentials, so that without any it is given made-up ones.
    """

    region: str | None = None
    profile: str | None = None
    endpoint_url: str | None = None
    role_arn: str | None = None  # assumed with the credentials that are there, and renewed
    role_external_id: str | None = None
    role_session_name: str | None = None


_DEFAULT_ACCESS: Final = AwsAccess()


def kinesis_client(access: AwsAccess = _DEFAULT_ACCESS, *, threads: int = THREADS_DEFAULT) -> Any:
    """A client for `KinesisStream`. It never retries: the reader does, at its own pace, and tells."""
    return _client("kinesis", access, threads, connect_s=5, read_s=30, attempts=1)


def dynamodb_client(access: AwsAccess = _DEFAULT_ACCESS, *, threads: int = THREADS_DEFAULT) -> Any:
    """A client for `DynamoDbRows`. A heartbeat that takes longer than this is as good as lost."""
    return _client("dynamodb", access, threads, connect_s=1, read_s=2, attempts=2)


def cloudwatch_client(access: AwsAccess = _DEFAULT_ACCESS) -> Any:
    """A client for metrics, which may come late."""
    return _client("cloudwatch", access, 2, connect_s=5, read_s=10, attempts=4)


def aws_session(access: AwsAccess) -> boto3.Session:
    """Credentials and region, in the role that is asked for."""
    session = boto3.Session(profile_name=access.profile, region_name=access.region)
    if access.role_arn is None:
        return session
    # boto3 assumes roles only for profiles; this is what it does for them, credentials that renew themselves included.
    source = session.get_credentials()
    if source is None:
        raise NoCredentialsError
    fetcher = AssumeRoleCredentialFetcher(
        session._session.create_client,  # noqa: SLF001 - boto3 offers no public way to the session beneath
        source,
        access.role_arn,
        extra_args=_role_arguments(access),
    )
    assumed = botocore.session.get_session()
    assumed._credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")  # noqa: SLF001
    return boto3.Session(botocore_session=assumed, region_name=session.region_name)


def _role_arguments(access: AwsAccess) -> dict[str, str]:
    external = {"ExternalId": access.role_external_id} if access.role_external_id else {}
    return {"RoleSessionName": access.role_session_name or "leasehold", **external}


def _client(
    service: str, access: AwsAccess, threads: int, *, connect_s: int, read_s: int, attempts: int
) -> Any:
    config = Config(
        connect_timeout=connect_s,
        read_timeout=read_s,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=threads,
        tcp_keepalive=True,
    )
    try:
        session = aws_session(access)
        options = _local_options(session, access.endpoint_url)
        return session.client(service, endpoint_url=access.endpoint_url, config=config, **options)
    except BotoCoreError as error:
        raise ConfigError(f"no client for {service}: {error}; check region, profile and endpoint") from error


def _local_options(session: boto3.Session, endpoint_url: str | None) -> dict[str, str]:
    """What a server on this machine does not care about, where the environment says nothing."""
    if endpoint_url is None or urlsplit(endpoint_url).hostname not in _LOOPBACK_HOSTS:
        return {}
    options = {} if session.region_name else {"region_name": _LOCAL_REGION}
    if session.get_credentials() is None:
        options |= {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
    return options
