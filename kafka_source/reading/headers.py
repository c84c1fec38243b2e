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
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_ssp.kafka_source.reading.arrow_batches import (
    Headers,
    headers_column,
    headers_from_counts,
    unreadable_headers,
)
from spark_ssp.kafka_source.reading.librdkafka import NO_ENTRY, Library, MessageStruct
from spark_ssp.kafka_source.reading.messages import (
    KEY,
    KEY_LENGTH,
    VALUE,
    VALUE_LENGTH,
    VerifiedLayout,
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


# --- Kafka's protocol -----------------------------------------------------------------------------
#
# A record ends with the number of its headers and, for each, the size of its name, the name, the
# size of its value (-1: null) and the value. Numbers are zigzag varints, seven bits to a byte:
# "Record" in Kafka's description of its message format.
#
# The first headers of all records are decoded together, then the second ones, and so on, each time
# by a few calls of numpy. The last few records with more headers are decoded one by one.

Numbers = npt.NDArray[np.int64]
Memory = npt.NDArray[np.uint8]

_MAX_SINGLE_ROWS: Final = 24
"""At most this number of records is decoded one by one, which is then as fast."""
_MAX_BITS: Final = 35
"""The bits of the longest varint of 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderPositions:
    """Positions of headers: `counts` has an entry for each record, the others have one for each
    header, in order. Positions are indexes into the memory; a null value has position -1, size
    0."""

    counts: Numbers
    names: Numbers
    name_sizes: Numbers
    values: Numbers
    value_sizes: Numbers


def find_headers(memory: Memory, begins: Numbers, ends: Numbers) -> HeaderPositions | None:
    """Return the positions of the headers that each record has between its begin and its end (equal
    if it has none); None if the bytes do not follow the protocol."""
    counts = np.zeros(len(begins), np.int64)
    rows = np.flatnonzero(ends > begins)
    found, at = _varints(memory, begins[rows], ends[rows])
    found = np.maximum(found, 0)
    # A header takes at least two bytes.
    if (2 * found > ends[rows] - at).any():
        return None
    counts[rows] = found
    firsts = np.cumsum(counts) - counts
    places = np.empty((4, int(counts.sum())), np.int64)
    rows, at = rows[found > 0], at[found > 0]
    number = 0
    while len(rows) > _MAX_SINGLE_ROWS:
        end = ends[rows]
        name_sizes, names = _varints(memory, at, end)
        sizes_at = names + name_sizes
        if (name_sizes < 0).any() or (sizes_at >= end).any():
            return None
        value_sizes, values = _varints(memory, sizes_at, end)
        present, sizes = value_sizes >= 0, np.maximum(value_sizes, 0)
        at = values + sizes
        if (value_sizes < -1).any() or (at > end).any():
            return None
        where = firsts[rows] + number
        places[0, where], places[1, where] = names, name_sizes
        places[2, where], places[3, where] = np.where(present, values, -1), sizes
        number += 1
        more = counts[rows] > number
        if (at[~more] != end[~more]).any():
            return None
        rows, at = rows[more], at[more]
    for row, begin in zip(rows.tolist(), at.tolist(), strict=True):
        rest = memory[begin : ends[row]].tobytes()
        headers = _headers(rest, int(counts[row]) - number, begin)
        if headers is None:
            return None
        places[:, firsts[row] + number : firsts[row] + counts[row]] = np.array(headers).T
    return HeaderPositions(
        counts=counts,
        names=places[0],
        name_sizes=places[1],
        values=places[2],
        value_sizes=places[3],
    )


def _varints(memory: Memory, at: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """Decode the varints at these positions; also return the positions after them, which are after
    the end if a varint does not end before it. No byte at or after the end is read."""
    byte = memory[np.minimum(at, ends - 1)].astype(np.int64)
    number, behind = byte, at + 1
    more = byte > 127
    if more.any():
        number = byte & 127
        for shift in range(7, _MAX_BITS, 7):
            byte = memory[np.minimum(behind, ends - 1)].astype(np.int64)
            number += np.where(more, (byte & 127) << shift, 0)
            behind += more
            more &= byte > 127
            if not more.any():
                break
        behind = np.where(more, ends + 1, behind)
    return (number >> 1) ^ -(number & 1), behind


def _headers(rest: bytes, count: int, place: int) -> list[tuple[int, int, int, int]] | None:
    """Return a row of `HeaderPositions` for each header of `rest`, which starts at `place`."""
    headers = []
    at = 0
    try:
        for _ in range(count):
            name_size, name = _varint(rest, at)
            value_size, value = _varint(rest, name + name_size)
            if name_size < 0 or value_size < -1:
                return None
            at = value + max(value_size, 0)
            headers.append(
                (
                    place + name,
                    name_size,
                    -1 if value_size < 0 else place + value,
                    max(value_size, 0),
                )
            )
    except IndexError:
        return None
    return headers if at == len(rest) else None


def _varint(rest: bytes, at: int) -> tuple[int, int]:
    """Decode a varint; also return the position after it. Raises IndexError if it does not end."""
    byte, number = rest[at], rest[at] & 127
    for shift in range(7, _MAX_BITS, 7):
        if byte < 128:
            break
        at += 1
        byte = rest[at]
        number += (byte & 127) << shift
    if byte > 127:
        raise IndexError(at)
    return (number >> 1) ^ -(number & 1), at + 1
