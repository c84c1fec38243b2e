"""Protects the services on 127.0.0.1 from requests of web pages.

They check no credentials, so any program that can send them a request can read and write. A browser
on this machine can: requests of a page have an `Origin`, and a name that an attacker resolves to
127.0.0.1 (DNS rebinding) appears in `Host`. AWS clients send no `Origin`.
"""

from __future__ import annotations

import re

MAX_BODY_BYTES = 16 * 1024 * 1024
"""More than any request needs: PutRecords takes 10 MiB, which is 14 MB as base64, and DynamoDB's
largest request is 16 MB."""

_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE | re.ASCII)


def refusal(*, host: str | None, origin: str | None) -> str | None:
    """Return why a request with these headers is refused, or None if it is accepted."""
    if origin is not None:
        return "requests of web pages (with an Origin header) are refused"
    if host is None or _LOOPBACK.fullmatch(host) is None:
        return "the Host header must be 127.0.0.1, localhost or [::1]"
    return None
