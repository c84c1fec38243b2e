"""Protects the services from requests of web pages.

They check no credentials, so any program that can send them a request can read and write. A browser
on this machine can: requests of a page have an `Origin`, and a name that an attacker resolves to
the service's address (DNS rebinding) appears in `Host`. AWS clients send no `Origin`.
"""

from __future__ import annotations

import re

MAX_BODY_BYTES = 16 * 1024 * 1024
"""More than any request needs: PutRecords takes 10 MiB, which is 14 MB as base64, and DynamoDB's
largest request is 16 MB."""

_NAMES = ("127.0.0.1", "localhost", "[::1]")
_PORT = re.compile(r":\d{1,5}$", re.ASCII)


def refusal(*, host: str | None, origin: str | None, address: str) -> str | None:
    """Return why a request with these headers is refused, or None if it is accepted. `address` is
    the one that the service listens on."""
    if origin is not None:
        return "requests of web pages (with an Origin header) are refused"
    names = dict.fromkeys((address.lower(), *_NAMES))
    if host is None or _PORT.sub("", host).lower() not in names:
        return f"the Host header must be one of {', '.join(names)}"
    return None
