"""Reads librdkafka's memory by numpy and Arrow: fields of messages, and scattered bytes."""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_ssp.common.errors import InvalidRequestError
from spark_ssp.kafka_source.client.arrow_batches import numeric_column
from spark_ssp.kafka_source.consumers.native.librdkafka import MessageStruct

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
    """Return a column of the bytes at these addresses, null for an address of 0.

    Arrow takes every second value of a column over the library's memory, in which the values
    alternate with the bytes between them.
    """
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
