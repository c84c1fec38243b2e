"""One request of the service, with methods that read and validate its fields; and the tokens of
requests (shard iterators, NextTokens).

A token is stateless and sealed against tampering: base64 text of a keyed digest and a payload of
`|`-separated fields. The key is a constant: it serves to detect invented or damaged tokens, not for
secrecy.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import Any, TypeVar

from spark_ssp.testing.kinesis.state.errors import (
    expired_next_token,
    invalid_argument,
    serialization,
    validation,
)
from spark_ssp.testing.kinesis.state.faults import (
    DelayVisibility,
    EmptyPage,
    LateShardEnd,
    RejectRecords,
    ShiftArrival,
    SubscriptionFault,
)

T = TypeVar("T")

Json = dict[str, Any]

Effect = (
    EmptyPage | LateShardEnd | DelayVisibility | ShiftArrival | RejectRecords | SubscriptionFault
)
"""Faults that do not prevent an answer but change the operation."""

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_MOST_SECONDS = 1e15
"""A bound of times, far beyond any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request. `body` has the API's field names; blobs are bytes or base64 text."""

    operation: str
    body: Json
    now_ms: int
    effects: tuple[Effect, ...] = ()

    def text(self, field: str) -> str | None:
        """Return a text field, or None if it is absent."""
        value = self.body.get(field)
        if value is not None and not isinstance(value, str):
            raise serialization(f"{field}: expected a string.")
        return value

    def required_text(self, field: str) -> str:
        return required(field, self.text(field))

    def name(self, field: str) -> str | None:
        """Return a field with the name of a stream or shard, or None if it is absent."""
        value = self.text(field)
        if value is not None and _NAME.fullmatch(value) is None:
            raise invalid_value(field, "must match [a-zA-Z0-9_.-]+ and have 1 to 128 characters")
        return value

    def required_name(self, field: str) -> str:
        return required(field, self.name(field))

    def flag(self, field: str) -> bool:
        """Return a boolean field; False if it is absent."""
        value = self.body.get(field)
        if value is not None and not isinstance(value, bool):
            raise serialization(f"{field}: expected true or false.")
        return bool(value)

    def integer(self, field: str) -> int | None:
        value = self.body.get(field)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise serialization(f"{field}: expected an integer.")
        return value

    def bounded(self, field: str, low: int, high: int) -> int | None:
        """Return an integer from `low` to `high`, or None if the field is absent."""
        value = self.integer(field)
        if value is not None and not low <= value <= high:
            raise invalid_value(field, f"must be from {low} to {high}")
        return value

    def mapping(self, field: str) -> Json | None:
        """Return an object, or None if the field is absent."""
        value = self.body.get(field)
        if value is not None and not isinstance(value, dict):
            raise serialization(f"{field}: expected an object.")
        return value

    def tags(self) -> dict[str, str] | None:
        """Return the field Tags, or None if it is absent."""
        found = self.mapping("Tags")
        if found is not None and not all(isinstance(value, str) for value in found.values()):
            raise serialization("Tags: expected strings.")
        return found

    def decimal(self, field: str, digits: int) -> int | None:
        """Return a non-negative number from decimal text of up to `digits` digits."""
        return decimal_value(field, self.body.get(field), digits)

    def time_ms(self, field: str) -> int | None:
        """Return a timestamp in seconds since the epoch as milliseconds."""
        return time_value(field, self.body.get(field))


def decimal_value(field: str, text: object, digits: int) -> int | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise serialization(f"{field}: expected a string.")
    if re.fullmatch(rf"0|[1-9]\d{{0,{digits - 1}}}", text, re.ASCII) is None:
        raise invalid_value(field, f"must be a decimal number of at most {digits} digits")
    return int(text)


def time_value(field: str, value: object) -> int | None:
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) < _MOST_SECONDS  # nor for NaN
    ):
        raise serialization(f"{field}: expected seconds since the epoch as a number.")
    return round(value * 1000)


def required(field: str, value: T | None) -> T:
    """Return the value of a field, or raise the error for an absent one."""
    if value is None:
        raise missing(field)
    return value


def missing(field: str) -> Exception:
    return validation(
        f"1 validation error detected: Value null at '{field}' failed to satisfy constraint: "
        f"Member must not be null"
    )


def invalid_value(field: str, rule: str) -> Exception:
    return validation(
        f"1 validation error detected: Value at '{field}' failed to satisfy constraint: "
        f"Member {rule}"
    )


# --- Tokens ---------------------------------------------------------------------------------------


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


def unseal_next_token(operation: str, token: str, now_ms: int) -> list[str]:
    """Return the fields of the NextToken of an operation, without the last two: its time and a
    serial number. Raises InvalidArgument, or ExpiredNextToken."""
    fields = unseal(operation, token)
    if fields is None:
        raise invalid_argument("Invalid NextToken.")
    *place, issued, _serial = fields
    if now_ms - int(issued) > NEXT_TOKEN_LIFE_MS:
        raise expired_next_token("NextToken has expired: it is valid for 300 seconds.")
    return place


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_DIGEST, key=_KEY).digest()
