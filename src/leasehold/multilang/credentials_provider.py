"""Translates the property `AwsCredentialsProvider`: a chain of Java classes, with arguments, to settings.

boto3's own chain finds credentials in the environment, profiles, web identities, containers and instances, in the order
of the Java SDK. So only a profile and a role to assume have to be named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from leasehold.errors import ConfigError

_DEFAULT_CHAIN: Final = {
    "DefaultCredentialsProvider",
    "DefaultAWSCredentialsProviderChain",
    "EnvironmentVariableCredentialsProvider",
    "InstanceProfileCredentialsProvider",
    "EC2ContainerCredentialsProviderWrapper",
    "ContainerCredentialsProvider",
    "WebIdentityTokenFileCredentialsProvider",
    "WebIdentityTokenCredentialsProvider",
}
_PROFILE: Final = "ProfileCredentialsProvider"
_ROLE: Final = {
    "StsAssumeRoleCredentialsProvider",
    "KclStsAssumeRoleCredentialsProvider",
    "STSAssumeRoleSessionCredentialsProvider",
    "KclSTSAssumeRoleSessionCredentialsProvider",
}
_WITHOUT_MEANING: Final = {
    "SystemPropertyCredentialsProvider": "there are no Java system properties",
    "SystemPropertiesCredentialsProvider": "there are no Java system properties",
    "AnonymousCredentialsProvider": "requests to AWS are always signed",
}


@dataclass(slots=True)
class Credentials:
    """The settings that a chain means, and what was left out of it."""

    settings: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def parse_credentials_provider(text: str) -> Credentials:
    """Parse a chain. Raises ConfigError if nothing in it has a meaning here.

    >>> parse_credentials_provider("StsAssumeRoleCredentialsProvider|arn:aws:iam::1:role/r|kcl|externalId=x").settings
    {'role_arn': 'arn:aws:iam::1:role/r', 'role_session_name': 'kcl', 'role_external_id': 'x'}
    """
    found = Credentials()
    has_meaning = False
    for provider in filter(None, (part.strip() for part in text.split(","))):
        name, *arguments = [part.strip() for part in provider.split("|")]
        name = name.rpartition(".")[2]
        if name in _WITHOUT_MEANING:
            found.problems.append(f"{name} is left out: {_WITHOUT_MEANING[name]}")
            continue
        settings = _settings_of(name, arguments, found)
        if settings is None:
            found.problems.append(
                f"{name} is left out: a Java class of your own cannot run here; use a profile with credential_process"
            )
            continue
        if found.settings and settings and settings != found.settings:
            found.problems.append(f"{name} is left out: only the first profile or role of the chain is used")
        elif not has_meaning or not found.settings:
            found.settings = found.settings or dict(settings)
        has_meaning = True
    if not has_meaning:
        raise ConfigError(
            f"AwsCredentialsProvider={text!r}: none of these can be used here; write DefaultCredentialsProvider, "
            "ProfileCredentialsProvider|name or StsAssumeRoleCredentialsProvider|role|session"
        )
    return found


def _settings_of(name: str, arguments: list[str], found: Credentials) -> Mapping[str, str] | None:
    """Return the settings of one provider, or None if it is unknown."""
    if name in _DEFAULT_CHAIN:
        return {}
    if name == _PROFILE:
        return {"profile": arguments[0]} if arguments else {}
    if name in _ROLE:
        return _role_settings(arguments, found)
    return None


def _role_settings(arguments: list[str], found: Credentials) -> Mapping[str, str]:
    plain = [each for each in arguments if "=" not in each]
    nested = dict(each.split("=", 1) for each in arguments if "=" in each)
    if not plain:
        raise ConfigError(
            "AwsCredentialsProvider names no role: write StsAssumeRoleCredentialsProvider|role|session"
        )
    settings = {"role_arn": plain[0]}
    if len(plain) > 1:
        settings["role_session_name"] = plain[1]
    for key, value in nested.items():
        if key == "externalId":
            settings["role_external_id"] = value
        else:
            found.problems.append(
                f"{key}={value} is left out: STS is reached where boto3 reaches it (AWS_ENDPOINT_URL_STS, AWS_REGION)"
            )
    return settings
