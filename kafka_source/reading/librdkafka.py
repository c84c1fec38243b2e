"""The consumer functions of librdkafka's public C interface, by ctypes, and the messages in its
memory, by numpy and Arrow. The library is the one that confluent-kafka is linked with.

The public functions for the time and the headers of a message are called once per message or per
header, which costs more than all other work. Both follow the public part of a message, at the same
place since version 1.0, but may move in any version. So they are read from memory only in versions
with a tested layout (`TESTED`), once the layout of the loaded library is verified
(`VerifiedLayout`). No version is usable on Windows, where an extension module does not export its
linked libraries; and the layout below is that of 64 bit, little endian.

Source: `rdkafka.h` of librdkafka 2, whose functions and `rd_kafka_message_t` are stable within the
major version.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final

import confluent_kafka.cimpl
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_ssp.kafka_source.reading.arrow_batches import (
    Headers,
    header_bytes,
    headers_column,
    headers_from_counts,
    numeric_column,
    unreadable_headers,
)

TESTED: Final = tuple((2, minor) for minor in range(14, 17))
"""The major and minor versions whose messages have the known layout: `make long` reads records with
each of them (`tests/support/environments/clients.py`)."""

_RELEASE: Final = 0xFF
"""The last byte of the version of a release."""

ERROR_TEXT: Final = 512
CONSUMER: Final = 1
"""RD_KAFKA_CONSUMER."""
NO_ENTRY: Final = -156
"""RD_KAFKA_RESP_ERR__NOENT."""

ERROR_CALLBACK: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
)
"""`error_cb(rk, err, reason, opaque)`: called by the thread that polls."""

LOG_CALLBACK: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p
)
"""`log_cb(rk, level, facility, text)`: with `log.queue`, called by the thread that polls."""


TOKEN_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
"""`oauthbearer_token_refresh_cb(rk, config, opaque)`: called by a thread of the library."""


class MessageStruct(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("err", ctypes.c_int32),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("_private", ctypes.c_void_p),
    )


class Library:
    """The functions that are used, with their types. Names are the library's without `rd_kafka_`.
    Functions that may wait release the interpreter's lock; those that are called for each message
    keep it, since acquiring it again costs more than the call."""

    def __init__(self, path: str) -> None:
        free, locked = ctypes.CDLL(path), ctypes.PyDLL(path)
        pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int

        def function(name: str, result: Any, *arguments: Any, library: Any = free) -> Any:
            found = getattr(library, f"rd_kafka_{name}")
            found.restype, found.argtypes = result, arguments
            return found

        size, long = ctypes.c_size_t, ctypes.c_int64
        self.version = function("version", number)
        self.conf_new = function("conf_new", pointer)
        self.conf_destroy = function("conf_destroy", None, pointer)
        self.conf_set = function("conf_set", number, pointer, text, text, text, size)
        self.conf_set_error_cb = function("conf_set_error_cb", None, pointer, ERROR_CALLBACK)
        self.conf_set_log_cb = function("conf_set_log_cb", None, pointer, LOG_CALLBACK)
        self.conf_set_token_cb = function(
            "conf_set_oauthbearer_token_refresh_cb", None, pointer, TOKEN_CALLBACK
        )
        self.conf_enable_sasl_queue = function("conf_enable_sasl_queue", None, pointer, number)
        self.sasl_in_background = function("sasl_background_callbacks_enable", pointer, pointer)
        self.set_token = function(
            "oauthbearer_set_token",
            number,
            pointer,
            text,
            long,
            text,
            pointer,
            size,
            text,
            size,
        )
        self.set_token_failure = function("oauthbearer_set_token_failure", number, pointer, text)
        self.set_log_queue = function("set_log_queue", number, pointer, pointer)
        self.new = function("new", pointer, number, pointer, text, size)
        self.destroy = function("destroy", None, pointer)
        self.poll_set_consumer = function("poll_set_consumer", number, pointer)
        self.consumer_close = function("consumer_close", number, pointer)
        self.queue_get_consumer = function("queue_get_consumer", pointer, pointer)
        self.queue_destroy = function("queue_destroy", None, pointer)
        self.list_new = function("topic_partition_list_new", pointer, number)
        self.list_add = function("topic_partition_list_add", pointer, pointer, text, ctypes.c_int32)
        self.list_set_offset = function(
            "topic_partition_list_set_offset", number, pointer, text, ctypes.c_int32, long
        )
        self.list_destroy = function("topic_partition_list_destroy", None, pointer)
        self.assign = function("assign", number, pointer, pointer)
        self.incremental_assign = function("incremental_assign", pointer, pointer, pointer)
        self.incremental_unassign = function("incremental_unassign", pointer, pointer, pointer)
        self.error_code = function("error_code", number, pointer)
        self.error_destroy = function("error_destroy", None, pointer)
        self.consume_batch_queue = function(
            "consume_batch_queue", ctypes.c_ssize_t, pointer, number, pointer, size
        )
        self.topic_name = function("topic_name", text, pointer)
        # Addresses of results are passed as numbers, which ctypes converts twice as fast.
        self.message_timestamp = function(
            "message_timestamp", long, pointer, pointer, library=locked
        )
        self.message_headers = function("message_headers", number, pointer, pointer, library=locked)
        self.header_get_all = function(
            "header_get_all", number, pointer, size, pointer, pointer, pointer, library=locked
        )
        self.message_destroy = function("message_destroy", None, pointer, library=locked)


@cache
def load() -> Library | str:
    """Return the library, or the reason for which its memory is not read."""
    if sys.platform == "win32" or sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return "another platform than 64 bit, little endian, with exported libraries"
    name, version = confluent_kafka.cimpl.libversion()
    if not is_tested(version):
        return f"librdkafka {name}, a version of unknown layout"
    try:
        found = Library(confluent_kafka.cimpl.__file__)
    except (OSError, AttributeError) as error:
        return f"librdkafka {name} without its functions: {error}"
    return found if int(found.version()) == version else "more than one librdkafka"


def is_tested(version: int) -> bool:
    """Return whether the layout of a version is known: 0x021001ff is the release 2.16.1, and any
    other last byte a version before it."""
    release = version & _RELEASE == _RELEASE
    return release and (version >> 24, version >> 16 & 0xFF) in TESTED


# --- Fields and bytes of messages -----------------------------------------------------------------

Words = npt.NDArray[np.int64]

WORD: Final = 8
ERR: Final = MessageStruct.err.offset // 4
TOPIC: Final = MessageStruct.rkt.offset // WORD
PARTITION: Final = MessageStruct.partition.offset // 4
VALUE: Final = MessageStruct.payload.offset // WORD
VALUE_LENGTH: Final = MessageStruct.len.offset // WORD
KEY: Final = MessageStruct.key.offset // WORD
KEY_LENGTH: Final = MessageStruct.key_len.offset // WORD
OFFSET: Final = MessageStruct.offset.offset // WORD
WIDTH: Final = ctypes.sizeof(MessageStruct) // WORD
"""The size of a message in words of 8 bytes. The constants above are indexes of fields: in words,
of `ERR` and `PARTITION` in halves of 4 bytes."""

_MAX_COLUMN_BYTES: Final = (1 << 31) - 1


def read_fields(addresses: Words, width: int) -> Words:
    """Return a row of the first `width` words at each address. Requires at least one address."""
    first = int(addresses.min())
    size = int(addresses.max()) - first + width * WORD
    memory = pa.foreign_buffer(first, size)
    rows: Words = np.ndarray(
        ((size // WORD) - width + 1, width), np.int64, memory, strides=(WORD, WORD)
    )
    found: Words = rows[(addresses - first) >> 3]
    return found


def gather_column(addresses: Words, lengths: Words) -> pa.Array:
    """Return a column of the bytes at these addresses, null for an address of 0. Arrow takes every
    second value of a column over the library's memory, in which the values alternate with the bytes
    between them."""
    count = len(addresses)
    present = addresses != 0
    whole = bool(present.all())
    validity = None if whole else pa.py_buffer(np.packbits(present, bitorder="little"))
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    total = int(ends[-1])
    if total > _MAX_COLUMN_BYTES:
        raise AssertionError("a column of more than 2 GiB")
    data = pa.py_buffer(b"")
    if total:
        starts = addresses if whole else np.where(lengths > 0, addresses, addresses.max())
        first = int(starts.min())
        bounds = np.empty(2 * count + 1, np.int64)
        np.subtract(starts, first, out=bounds[:-1:2])
        np.add(bounds[:-1:2], lengths, out=bounds[1::2])
        # Arrow estimates the size of the values from the last bound and the first.
        bounds[-1] = bounds[0] + 2 * total
        memory = pa.foreign_buffer(first, int(bounds.max()))
        interleaved = pa.Array.from_buffers(
            pa.large_binary(), 2 * count, [None, pa.py_buffer(bounds), memory]
        )
        every_second = numeric_column(pa.int32(), np.arange(0, 2 * count, 2, dtype=np.int32))
        data = interleaved.take(every_second).buffers()[2]
    offsets = pa.py_buffer(ends.astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [validity, offsets, data])


REQUIRED_MESSAGES: Final = 64
"""Messages that are read both ways before only the memory is read."""


class VerifiedLayout:
    """A part of messages that is read from the memory of the library, if its layout is the usual
    one, or by its functions. Each subclass is verified separately, once per process: if both ways
    agree for the first messages, later ones are read only from memory."""

    _agreed: ClassVar[int] = 0
    _mismatch: ClassVar[bool] = False

    @classmethod
    def is_verified(cls) -> bool:
        """Return whether the memory is read."""
        return cls._agreed >= REQUIRED_MESSAGES and not cls._mismatch


# --- Times ----------------------------------------------------------------------------------------

_KIND_OFFSET: Final = ctypes.sizeof(MessageStruct) + 20
_TIME_OFFSET: Final = ctypes.sizeof(MessageStruct) + 24
"""The offset after two pointers and an integer of flags: an integer for the kind, then the time."""

Kinds = npt.NDArray[np.int32]
Millis = npt.NDArray[np.int64]


class MessageTimes(VerifiedLayout):
    """Reads kinds (-1 none, 0 CreateTime, 1 LogAppendTime: the numbers of Java and Spark) and
    milliseconds (-1 for none)."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def of(self, addresses: npt.NDArray[np.int64]) -> tuple[Kinds, Millis]:
        """Return the times of the messages at these addresses: records, not errors."""
        kinds, millis = self._read(addresses)
        return kinds - np.int32(1), np.where(kinds == 0, np.int64(-1), millis)

    def _read(self, addresses: npt.NDArray[np.int64]) -> tuple[Kinds, Millis]:
        state = type(self)
        if state._mismatch:
            return self.read_by_api(addresses)
        kinds, millis = self.read_memory(addresses)
        if state.is_verified():
            return kinds, millis
        api_kinds, api_millis = self.read_by_api(addresses)
        if (kinds == api_kinds).all() and (millis == api_millis).all():
            state._agreed += int(np.count_nonzero(api_millis > 0))
        else:
            state._mismatch = True
        return api_kinds, api_millis

    def read_memory(self, addresses: npt.NDArray[np.int64]) -> tuple[Kinds, Millis]:
        """Read the times from memory."""
        first = int(addresses.min())
        size = int(addresses.max()) - first
        places = (addresses - first) >> 3
        kinds: Kinds = np.ndarray(
            size // 8 + 1, np.int32, pa.foreign_buffer(first + _KIND_OFFSET, size + 4), strides=(8,)
        )
        millis: Millis = np.ndarray(
            size // 8 + 1, np.int64, pa.foreign_buffer(first + _TIME_OFFSET, size + 8)
        )
        return kinds[places], millis[places]

    def read_by_api(self, addresses: npt.NDArray[np.int64]) -> tuple[Kinds, Millis]:
        """Read the times by the library's function."""
        count = len(addresses)
        kinds = np.empty(count, np.int32)
        first = kinds.ctypes.data
        places = range(first, first + kinds.nbytes, kinds.itemsize)
        calls = map(self._library.message_timestamp, addresses.tolist(), places)
        return kinds, np.fromiter(calls, np.int64, count)


# --- Headers --------------------------------------------------------------------------------------

_HEADER_BYTES_OFFSET: Final = ctypes.sizeof(MessageStruct) + 48
"""The offset after four fields of 8 bytes and four of 4: an integer of 4 bytes for the length, and
in the next word the address of the bytes."""

NameOf = Callable[[int], str]
"""Returns the name of the record of a row, for errors."""


class MessageHeaders(VerifiedLayout):
    """Reads headers as a column, null for messages without headers.

    The library keeps the original bytes of a record's headers. The headers of the first messages of
    a process are read both ways, and bytes only if they follow the record's value directly, as in
    Kafka's format.

    Kafka's protocol defines names as UTF-8, but does not validate them. Java decodes invalid bytes
    as the replacement character, and so does this class: confluent-kafka cannot read such headers.
    """

    def __init__(self, library: Library) -> None:
        self._library = library

    def of(self, addresses: Words, words: Words, name_of: NameOf) -> pa.Array:
        """Return the headers of the messages at these addresses: records, not errors. `words` are
        the fields of each. Raises InvalidRequestError if the bytes are not valid headers."""
        if self.is_verified():
            found = self.read_memory(addresses)
            if found is not None:
                return found
        rest = self.read_by_api(addresses.tolist(), name_of)
        first: list[Headers | None] = []
        if not self._mismatch and not self.is_verified():
            first = self._to_compare(rest, words)
            self._compare(first, addresses[: len(first)], words[: len(first)])
            if self.is_verified():
                return self.of(addresses, words, name_of)
        return headers_column([*first, *rest])

    def sizes(self, addresses: Words, name_of: NameOf) -> Words:
        """Return the bytes of each message's headers. Memory whose layout is not verified yet may
        be wrong about them, until the first headers are read."""
        if self._mismatch:
            found = map(header_bytes, self.read_by_api(addresses.tolist(), name_of))
            return np.fromiter(found, np.int64, len(addresses))
        return self._bytes(addresses)[0]

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

    def read_by_api(self, addresses: Sequence[int], name_of: NameOf) -> Iterator[Headers | None]:
        """Read the headers by the library's functions. A name ends before its first zero byte, as
        in C."""
        headers, name = ctypes.c_void_p(), ctypes.c_char_p()
        value, size = ctypes.c_void_p(), ctypes.c_size_t()
        found = ctypes.addressof(headers)
        one = ctypes.addressof(name), ctypes.addressof(value), ctypes.addressof(size)
        ask, get = self._library.message_headers, self._library.header_get_all
        copy = ctypes.string_at
        for row, address in enumerate(addresses):
            code = ask(address, found)
            if code == NO_ENTRY:
                yield None
                continue
            if code:
                raise unreadable_headers(name_of(row))
            pairs: list[tuple[str, bytes | None]] = []
            where = headers.value
            while not get(where, len(pairs), *one):
                key = (name.value or b"").decode(errors="replace")
                pairs.append((key, copy(value.value, size.value) if value.value else None))
            yield pairs

    def _bytes(self, addresses: Words) -> tuple[Words, Words]:
        """Return the length and the address of the header bytes of each message."""
        words = read_fields(addresses + _HEADER_BYTES_OFFSET, 2)
        lengths = words.view(np.int32)[:, 0].astype(np.int64)
        return np.maximum(lengths, 0), words[:, 1]

    def _to_compare(self, headers: Iterator[Headers | None], words: Words) -> list[Headers | None]:
        """Return the first headers, as many as the layout needs to be verified."""
        first: list[Headers | None] = []
        missing = REQUIRED_MESSAGES - self._agreed
        for is_known, found in zip(_have_known_ends(words).tolist(), headers, strict=True):
            first.append(found)
            missing -= is_known and found is not None
            if missing <= 0:
                break
        return first

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
        known = _have_known_ends(words)
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


def _have_known_ends(words: Words) -> npt.NDArray[np.bool_]:
    """Return which messages have a key or a value of at least a byte: their headers follow it."""
    known: npt.NDArray[np.bool_] = (words[:, VALUE_LENGTH] > 0) | (words[:, KEY_LENGTH] > 0)
    return known


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
