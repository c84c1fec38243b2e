"""Reads librdkafka's memory by numpy and Arrow: fields and times of messages, and scattered bytes.

The public function for a time is called once per message, which costs as much as all other work.
The time follows the public part of a message, at the same place since version 1.0: it is read from
memory once the layout of the loaded library is verified (`VerifiedLayout`).
"""

from __future__ import annotations

import ctypes
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_ssp.common.errors import InvalidRequestError
from spark_ssp.kafka_source.reading.arrow_batches import numeric_column
from spark_ssp.kafka_source.reading.librdkafka import Library, MessageStruct

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
        raise InvalidRequestError(
            "headers of a batch",
            found=f"{total} bytes in one column",
            expected="at most 2 GiB",
            next_step="lower kafka.queued.min.messages, or read without includeHeaders",
        )
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
