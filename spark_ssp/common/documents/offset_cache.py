"""Caches the offsets of a query as values and as JSON."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from spark_ssp.common.documents.versioned_json import Json

Written = TypeVar("Written")
Read = TypeVar("Read")


class OffsetCache(Generic[Written, Read]):
    """Encodes and decodes the offsets of one query, with a cache of the last two.

    Spark passes the offsets of a batch several times, and that of an idle query at every trigger.
    Comparing two documents is cheaper than decoding one.
    """

    def __init__(self, encode: Callable[[Written], Json], decode: Callable[[Any], Read]) -> None:
        self._encode = encode
        self._decode = decode
        self._recent: deque[tuple[Json, Written | Read]] = deque(maxlen=2)

    def encode(self, offset: Written) -> Json:
        """Encode an offset. The returned document must not be changed."""
        document = self._encode(offset)
        self._recent.append((document, offset))
        return document

    def decode(self, document: Any) -> Written | Read:
        """Decode an offset. The document must not be changed afterwards."""
        for known, offset in self._recent:
            if known == document:
                return offset
        decoded = self._decode(document)
        self._recent.append((document, decoded))
        return decoded
