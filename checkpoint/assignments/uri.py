"""The URIs of the option `assignmentStore`. Only storage that can create a file atomically if it
does not exist. Elsewhere two writers could overwrite each other, so other schemes are rejected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spark_ssp.common.errors import shown
from spark_ssp.common.options.spec import BadValueError, Fault
from spark_ssp.common.write_once_files import is_bucket

EXAMPLES: Final = (
    "a URI such as s3://bucket/assignments/orders, dynamodb://table/orders, gs://bucket/orders, "
    "abfs://container/orders or file:///mnt/shared/orders"
)


class StoreKind(StrEnum):
    """The implementation of a store."""

    LOCAL = "local"
    FSSPEC = "fsspec"
    S3 = "s3"
    DYNAMODB = "dynamodb"


_KINDS: Final[Mapping[str, StoreKind]] = {
    "abfs": StoreKind.FSSPEC,
    "abfss": StoreKind.FSSPEC,
    "az": StoreKind.FSSPEC,
    "dynamodb": StoreKind.DYNAMODB,
    "file": StoreKind.LOCAL,
    "gcs": StoreKind.FSSPEC,
    "gs": StoreKind.FSSPEC,
    "memory": StoreKind.FSSPEC,
    "s3": StoreKind.S3,
    "s3a": StoreKind.S3,
}

_URI: Final = re.compile(r"([a-z][a-z0-9+.-]*)://([^\s?#@]+)", re.ASCII)
_TABLE: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}", re.ASCII)
_MAX_KEY_BYTES: Final = 900
"""Below the limits of S3 (1024) and DynamoDB (2048), to leave room for suffixes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUri:
    """A parsed URI. Its text contains no password and may be shown."""

    text: str
    scheme: str
    kind: StoreKind
    container: str
    """The bucket, container or table; empty for a local path."""
    path: str
    """The folder in it, without a trailing slash; for a local store the whole path, for DynamoDB
    the item's key."""


def parse_store_uri(text: str) -> StoreUri:
    """Parse a URI. BadValueError if it cannot be a store."""
    match = _URI.fullmatch(text)
    if match is None:
        raise _bad(text, EXAMPLES, "write scheme and path, without a user, a password or a query")
    scheme, rest = match.groups()
    kind = _KINDS.get(scheme)
    if kind is None:
        raise _bad(
            text,
            EXAMPLES,
            f"{shown(scheme)} cannot create a file only if it does not exist, so that two writers "
            "could overwrite each other: choose another storage",
        )
    if kind is StoreKind.LOCAL:
        path = "/" + rest.strip("/")
        if not rest.startswith("/") or path == "/" or ".." in path.split("/"):
            raise _bad(text, "file:// and an absolute path", "write file:///folder/name")
        return StoreUri(text=text, scheme=scheme, kind=kind, container="", path=path)
    container, _, path = rest.partition("/")
    path = path.strip("/")
    if not path or len(path.encode()) > _MAX_KEY_BYTES:
        raise _bad(
            text,
            f"a path of 1 to {_MAX_KEY_BYTES} bytes after the first name",
            "write it as in s3://bucket/assignments/orders: many pipelines can share a bucket, "
            "each with another path",
        )
    _check_container(text, kind, container)
    return StoreUri(text=text, scheme=scheme, kind=kind, container=container, path=path)


def _check_container(text: str, kind: StoreKind, container: str) -> None:
    if kind is StoreKind.S3 and not is_bucket(container):
        raise _bad(text, "a bucket name of 3 to 63 characters", "write it as in S3")
    if kind is StoreKind.DYNAMODB and not _TABLE.fullmatch(container):
        raise _bad(
            text,
            "a table name of 3 to 255 letters, digits, '_', '.' and '-'",
            "write it as in DynamoDB",
        )
    if not container:
        raise _bad(text, EXAMPLES, "name the bucket or container")


def _bad(text: str, expected: str, next_step: str) -> BadValueError:
    return BadValueError(Fault(found=shown(text), expected=expected, next_step=next_step))
