"""Opaque tokens (shard iterators, NextTokens): stateless, sealed against tampering.

A token is URL-safe text over a keyed digest and a payload of `|`-separated fields. The key is a
constant: the point is that a made-up or damaged token is recognised, not secrecy.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

NEXT_TOKEN_LIFE_MS = 300_000
"""How long a NextToken is good for (API reference, ListShards)."""

_KEY = b"embedded-kinesis"
_DIGEST = 12
_FILLER = b"\x00" * 6  # tokens of the service begin with a row of A's, too


def seal(kind: str, *fields: str | int) -> str:
    """A token of `kind` that holds `fields`, none of which may contain a `|`."""
    payload = "|".join([kind, *map(str, fields)]).encode()
    return base64.b64encode(_FILLER + _digest(payload) + payload).decode()


def unseal(kind: str, token: str) -> list[str] | None:
    """The fields of a token of `kind`, or None when `token` is not one that `seal` made."""
    try:
        raw = base64.b64decode(token.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    head, payload = raw[: len(_FILLER) + _DIGEST], raw[len(_FILLER) + _DIGEST :]
    if head != _FILLER + _digest(payload):
        return None
    found, *fields = payload.decode().split("|")
    return fields if found == kind else None


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_DIGEST, key=_KEY).digest()
