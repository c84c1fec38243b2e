"""Reads the headers of messages from librdkafka's memory.

The public functions are called once per header, which costs more than all other work. But the
library keeps the original bytes of a record's headers; their address and length follow the public
part of a message, at the same place since version 1.0. The layout of the loaded library is
verified: the headers of the first messages of a process are read both ways, and the memory is only
used later if all agree. Until then bytes are read only if they follow the record's value directly,
as in Kafka's format.

Kafka's protocol defines names as UTF-8, but does not validate them. Java decodes invalid bytes as
the replacement character, and so does this module: confluent-kafka cannot read such headers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_ssp.kafka_source.client.arrow_batches import (
    Headers,
    headers_column,
    headers_from_counts,
    unreadable_headers,
)
from spark_ssp.kafka_source.consumers.native.header_decoder import find_headers
from spark_ssp.kafka_source.consumers.native.layout_verification import VerifiedLayout
from spark_ssp.kafka_source.consumers.native.librdkafka import NO_ENTRY, Library, MessageStruct
from spark_ssp.kafka_source.consumers.native.memory import (
    KEY,
    KEY_LENGTH,
    VALUE,
    VALUE_LENGTH,
    Words,
    gather_column,
    read_fields,
)

_HEADER_BYTES_OFFSET: Final = ctypes.sizeof(MessageStruct) + 48
"""The offset after four fields of 8 bytes and four of 4: an integer of 4 bytes for the length, and
in the next word the address of the bytes."""

NameOf = Callable[[int], str]
"""Returns the name of the record of a row, for errors."""


class MessageHeaders(VerifiedLayout):
    """Reads headers as a column, null for messages without headers."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def of(self, addresses: Words, words: Words, name_of: NameOf) -> pa.Array:
        """Return the headers of the messages at these addresses: records, not errors. `words` are
        the fields of each. Raises InvalidRequestError if the bytes are not valid headers."""
        if self.is_verified():
            found = self.read_memory(addresses)
            if found is not None:
                return found
        expected = self.read_by_api(addresses.tolist(), name_of)
        if not self._mismatch and not self.is_verified():
            self._compare(expected, addresses, words)
        return headers_column(expected)

    def read_memory(self, addresses: Words) -> pa.Array | None:
        """Read the headers from memory; None if some bytes do not follow Kafka's protocol."""
        lengths, begins = self._bytes(addresses)
        there = begins[lengths > 0]
        if not len(there):
            return headers_column([None] * len(addresses))
        begins = np.where(lengths > 0, begins, there.min())
        first = int(begins.min())
        size = int((begins + lengths).max()) - first
        memory = np.frombuffer(pa.foreign_buffer(first, size), np.uint8)
        found = find_headers(memory, begins - first, begins - first + lengths)
        if found is None:
            return None
        values = np.where(found.values < 0, 0, found.values + first)
        return headers_from_counts(
            found.counts,
            gather_column(found.names + first, found.name_sizes),
            gather_column(values, found.value_sizes),
        )

    def read_by_api(self, addresses: Sequence[int], name_of: NameOf) -> list[Headers | None]:
        """Read the headers by the library's functions. A name ends before its first zero byte, as
        in C."""
        headers, name = ctypes.c_void_p(), ctypes.c_char_p()
        value, size = ctypes.c_void_p(), ctypes.c_size_t()
        found = ctypes.addressof(headers)
        one = ctypes.addressof(name), ctypes.addressof(value), ctypes.addressof(size)
        ask, get = self._library.message_headers, self._library.header_get_all
        copy = ctypes.string_at
        result: list[Headers | None] = []
        for row, address in enumerate(addresses):
            code = ask(address, found)
            if code == NO_ENTRY:
                result.append(None)
                continue
            if code:
                raise unreadable_headers(name_of(row))
            pairs: list[tuple[str, bytes | None]] = []
            where = headers.value
            while not get(where, len(pairs), *one):
                key = (name.value or b"").decode(errors="replace")
                pairs.append((key, copy(value.value, size.value) if value.value else None))
            result.append(pairs)
        return result

    def _bytes(self, addresses: Words) -> tuple[Words, Words]:
        """Return the length and the address of the header bytes of each message."""
        words = read_fields(addresses + _HEADER_BYTES_OFFSET, 2)
        lengths = words.view(np.int32)[:, 0].astype(np.int64)
        return np.maximum(lengths, 0), words[:, 1]

    def _compare(self, expected: list[Headers | None], addresses: Words, words: Words) -> None:
        """Compare the headers with those in memory. Names that the library cut at a zero byte are
        replaced by the whole names: they must not depend on the way of reading."""
        state = type(self)
        lengths, begins = self._bytes(addresses)
        values, keys = (
            words[:, VALUE] + words[:, VALUE_LENGTH],
            words[:, KEY] + words[:, KEY_LENGTH],
        )
        # An empty or null value has no address; its length takes one byte.
        behind = np.where(words[:, VALUE_LENGTH] > 0, values, keys + 1)
        known = (words[:, VALUE_LENGTH] > 0) | (words[:, KEY_LENGTH] > 0)
        sure = known & (begins == behind) & (lengths > 0)
        some: npt.NDArray[np.bool_] = np.array([headers is not None for headers in expected])
        if (some & known & ~sure).any():
            state._mismatch = True
            return
        rows = np.flatnonzero(sure)
        found = self.read_memory(addresses[rows]) if len(rows) else headers_column([])
        if found is None:
            state._mismatch = True
            return
        for row, headers in zip(rows.tolist(), found.to_pylist(), strict=True):
            pairs = None if headers is None else [(one["key"], one["value"]) for one in headers]
            cut = None if pairs is None else [(key.split("\0")[0], of) for key, of in pairs]
            if cut != expected[row]:
                state._mismatch = True
                return
            expected[row] = pairs
        state._agreed += int(np.count_nonzero(some & sure))
