"""Reads the times of messages from librdkafka's memory.

The public function is called once per message, which costs as much as all other work. The time
follows the public part of a message, at the same place since version 1.0. The layout of the loaded
library is verified: the first messages of a process are read both ways, and the memory is only used
later if all agree.
"""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_ssp.kafka_source.consumers.native.layout_verification import VerifiedLayout
from spark_ssp.kafka_source.consumers.native.librdkafka import Library, MessageStruct

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
