"""Refuses credentials that cannot be sent in a header: with a line break, or with a letter outside ASCII.

A file with Windows line ends is enough to cause it. Sent as they are, such credentials end a header and begin another
one. boto3 refuses them with an error that quotes the token, and obstore ends the thread. So they are checked where
every client gets them, and the error names only the field.
"""

from __future__ import annotations

import re
from typing import Any, Final

from leasehold.errors import ConfigError

_FIELDS: Final = {
    "access_key": "access key id",
    "secret_key": "secret access key",
    "token": "session token",
}
_SENDABLE: Final = re.compile(r"[!-~]*")  # the visible characters of ASCII


class CheckedCredentials:
    """Credentials of botocore. Whoever signs with them gets them from `get_frozen_credentials`."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    def get_frozen_credentials(self) -> Any:
        """The credentials now. Renews those of a role, which blocks. Raises ConfigError if they cannot be sent."""
        frozen = self._credentials.get_frozen_credentials()
        for field, name in _FIELDS.items():
            if _SENDABLE.fullmatch(getattr(frozen, field) or "") is None:
                raise ConfigError(
                    f"the {name} of the AWS credentials contains a line break, a space or another character that no "
                    "AWS credentials have: check where it comes from (variable, file or program)"
                )
        return frozen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._credentials, name)
