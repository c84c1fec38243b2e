"""librdkafka's memory as numpy and Arrow see it: fields of messages, and bytes that lie apart."""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_source.client.arrow_batches import numeric_column
from kafka_source.consumers.native.librdkafka import MessageStruct
from ssp_common.errors import InvalidRequestError

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
"""Where the fields of a message are: words of 8 bytes, halves of 4."""

_MOST_BYTES: Final = (1 << 31) - 1


def fields(addresses: Words, width: int) -> Words:
    """The first `width` words at each of these addresses, a row for each; at least one address."""
    first = int(addresses.min())
    size = int(addresses.max()) - first + width * WORD
    memory = pa.foreign_buffer(first, size)
    rows: Words = np.ndarray(
        ((size // WORD) - width + 1, width), np.int64, memory, strides=(WORD, WORD)
    )
    found: Words = rows[(addresses - first) >> 3]
    return found


def gathered(addresses: Words, lengths: Words) -> pa.Array:
    """A column of the bytes at these addresses, null where one is 0.

    Arrow takes every second value out of a column over the library's memory as it lies: the values
    and, between them, whatever is there.
    """
    count = len(addresses)
    present = addresses != 0
    whole = bool(present.all())
    validity = None if whole else pa.py_buffer(np.packbits(present, bitorder="little"))
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    total = int(ends[-1])
    if total > _MOST_BYTES:
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
        # From the last bound and the first Arrow guesses how much the values will take.
        bounds[-1] = bounds[0] + 2 * total
        memory = pa.foreign_buffer(first, int(bounds.max()))
        lying = pa.Array.from_buffers(
            pa.large_binary(), 2 * count, [None, pa.py_buffer(bounds), memory]
        )
        every_second = numeric_column(pa.int32(), np.arange(0, 2 * count, 2, dtype=np.int32))
        data = lying.take(every_second).buffers()[2]
    offsets = pa.py_buffer(ends.astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [validity, offsets, data])
