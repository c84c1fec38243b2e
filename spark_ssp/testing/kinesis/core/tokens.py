"""Opaque tokens (shard iterators, NextTokens): stateless, sealed against tampering.

A token is base64 text of a keyed digest and a payload of `|`-separated fields. The key is a
constant: it serves to detect invented or damaged tokens, not for secrecy.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

NEXT_TOKEN_LIFE_MS = 300_000
"""The lifetime of a NextToken (API reference, ListShards)."""

_KEY = b"embedded-kinesis"
_DIGEST = 12
_FILLER = b"\x00" * 6  # tokens of the service begin with a row of A's, too


def seal(kind: str, *fields: str | int) -> str:
    """Return a token of `kind` with `fields`, which must not contain `|`."""
    payload = "|".join([kind, *map(str, fields)]).encode()
    return base64.b64encode(_FILLER + _digest(payload) + payload).decode()


def unseal(kind: str, token: str) -> list[str] | None:
    """Return the fields of a token of `kind`, or None if `seal` did not make it."""
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
