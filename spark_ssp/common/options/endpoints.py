"""Endpoint and credentials of an AWS service: a frozen value that processes receive by pickle."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, fields
from typing import Final
from urllib.parse import urlsplit

_HIDDEN: Final = frozenset(
    {
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "credentials_provider_secret_arguments",
        "role_external_id",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Endpoint and credentials. Hashable, since clients are cached by it. Durations are in ms.

    None means "as in the AWS configuration". Its text never shows credentials;
    its pickle carries them, because executors need them.
    """

    region: str | None = None
    endpoint_url: str | None = None
    aws_profile: str | None = None
    aws_access_key_id: str | None = None
    aws_secret_access_key: str | None = None
    aws_session_token: str | None = None
    credentials_provider: str | None = None
    credentials_provider_secret_arguments: str | None = None
    """A JSON object as text."""
    role_arn: str | None = None
    role_external_id: str | None = None
    role_session_name: str | None = None
    sts_endpoint_url: str | None = None
    role_option: str = "roleArn"
    """The option that named the role, for messages."""
    retry_max_attempts: int = 8
    retry_max_backoff_ms: int = 10_000
    connect_timeout_ms: int = 10_000
    read_timeout_ms: int = 30_000

    def __repr__(self) -> str:
        shown = []
        for entry in fields(self):
            value = getattr(self, entry.name)
            hidden = entry.name in _HIDDEN and value is not None
            shown.append(f"{entry.name}={'***' if hidden else repr(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


def is_loopback(endpoint_url: str | None) -> bool:
    """Return whether the endpoint is on this machine; None is a real endpoint of AWS."""
    host = urlsplit(endpoint_url or "").hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
