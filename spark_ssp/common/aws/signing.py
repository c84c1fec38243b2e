"""Signs requests with AWS Signature Version 4: a POST without a query, as the JSON protocol sends.

Source: "Create a signed AWS API request" in the IAM user guide.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

ALGORITHM: Final = "AWS4-HMAC-SHA256"
_END: Final = "aws4_request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The scope of a signature, except the day."""

    region: str
    service: str

    def on(self, day: str) -> str:
        """Return the signed form of the scope on a day (YYYYMMDD)."""
        return f"{day}/{self.region}/{self.service}/{_END}"


def signing_key(secret_key: str, day: str, scope: Scope) -> bytes:
    """The key for all signatures of a day (YYYYMMDD) in this scope."""
    key = f"AWS4{secret_key}".encode()
    for part in (day, scope.region, scope.service, _END):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


class RequestSigner:
    """Signs POST requests to `path` that differ only in their bodies.

    `headers` are those to sign, by their names in lower case, without spaces at the ends of values
    or two in a row within; `host` and `x-amz-date` (YYYYMMDDTHHMMSSZ) must be among them. `key` is
    the `signing_key` of that day.
    """

    __slots__ = ("_header", "_key", "_request", "_text")

    def __init__(
        self, *, access_key: str, key: bytes, scope: Scope, path: str, headers: Mapping[str, str]
    ) -> None:
        moment = headers["x-amz-date"]
        scoped = scope.on(moment[:8])
        names = sorted(headers)
        signed = ";".join(names)
        lines = "".join(f"{name}:{headers[name]}\n" for name in names)
        self._key = key
        self._request = f"POST\n{path}\n\n{lines}\n{signed}\n"
        self._text = f"{ALGORITHM}\n{moment}\n{scoped}\n"
        self._header = (
            f"{ALGORITHM} Credential={access_key}/{scoped}, SignedHeaders={signed}, Signature="
        )

    def authorization(self, body: bytes) -> str:
        """Return the header `Authorization` of the request with this body."""
        request = self._request + hashlib.sha256(body).hexdigest()
        text = self._text + hashlib.sha256(request.encode()).hexdigest()
        return self._header + hmac.digest(self._key, text.encode(), "sha256").hex()
