"""The headers of messages in librdkafka's memory.

The public functions for them are called header by header, which costs more than all the rest. But
the library keeps the bytes in which a record's headers came; where, and how many, lies behind the
public part of a message, where it has lain since version 1.0. Whether it does in the library at
hand is found out, not believed: of the first messages of a process headers are read both ways, and
only if all agree the bytes are read from then on. Until then bytes are looked at only where they
begin right behind the record's value, as they do in Kafka's format.

Kafka's protocol has names as UTF-8, and nothing checks that. Java reads what is none with the
replacement character, and so does this: confluent-kafka cannot read such a record's headers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_source.client.arrow_batches import (
    Headers,
    headers_column,
    headers_from_counts,
    unreadable_headers,
)
from kafka_source.consumers.native.header_decoder import find_headers
from kafka_source.consumers.native.layout_verification import ProvenLayout
from kafka_source.consumers.native.librdkafka import NO_ENTRY, Library, MessageStruct
from kafka_source.consumers.native.memory import (
    KEY,
    KEY_LENGTH,
    VALUE,
    VALUE_LENGTH,
    Words,
    fields,
    gathered,
)

_BYTES_AT: Final = ctypes.sizeof(MessageStruct) + 48
"""Behind four pointers or numbers of 8 bytes and four of 4: an integer of 4 bytes for the length,
and in the next word where the bytes lie."""

NameOf = Callable[[int], str]
"""How an error calls the record in a row."""


class MessageHeaders(ProvenLayout):
    """Reads headers as a column, null where there are none."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def of(self, addresses: Words, words: Words, name_of: NameOf) -> pa.Array:
        """Those of the messages at these addresses: records, not errors. `words` are the fields of
        each. Raises InvalidRequestError where the bytes are no headers."""
        if self.trusted():
            found = self.direct(addresses)
            if found is not None:
                return found
        asked = self.asked(addresses.tolist(), name_of)
        if not self._differ and not self.trusted():
            self._compare(asked, addresses, words)
        return headers_column(asked)

    def direct(self, addresses: Words) -> pa.Array | None:
        """Read where they lie; None where something there is not as Kafka has it."""
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
            gathered(found.names + first, found.name_sizes),
            gathered(values, found.value_sizes),
        )

    def asked(self, addresses: Sequence[int], name_of: NameOf) -> list[Headers | None]:
        """Asked for, one by one. A name ends before its first zero byte, as in C."""
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
        """How many bytes of headers each message has, and where they lie."""
        words = fields(addresses + _BYTES_AT, 2)
        lengths = words.view(np.int32)[:, 0].astype(np.int64)
        return np.maximum(lengths, 0), words[:, 1]

    def _compare(self, asked: list[Headers | None], addresses: Words, words: Words) -> None:
        """Read what was asked for the other way as well. Where that has the whole name, so has
        `asked` then: names must not depend on who read them."""
        state = type(self)
        lengths, begins = self._bytes(addresses)
        values, keys = (
            words[:, VALUE] + words[:, VALUE_LENGTH],
            words[:, KEY] + words[:, KEY_LENGTH],
        )
        # An empty or a null value lies nowhere; its length takes one byte.
        behind = np.where(words[:, VALUE_LENGTH] > 0, values, keys + 1)
        known = (words[:, VALUE_LENGTH] > 0) | (words[:, KEY_LENGTH] > 0)
        sure = known & (begins == behind) & (lengths > 0)
        some: npt.NDArray[np.bool_] = np.array([headers is not None for headers in asked])
        if (some & known & ~sure).any():
            state._differ = True
            return
        rows = np.flatnonzero(sure)
        found = self.direct(addresses[rows]) if len(rows) else headers_column([])
        if found is None:
            state._differ = True
            return
        for row, headers in zip(rows.tolist(), found.to_pylist(), strict=True):
            pairs = None if headers is None else [(one["key"], one["value"]) for one in headers]
            cut = None if pairs is None else [(key.split("\0")[0], of) for key, of in pairs]
            if cut != asked[row]:
                state._differ = True
                return
            asked[row] = pairs
        state._agreed += int(np.count_nonzero(some & sure))
