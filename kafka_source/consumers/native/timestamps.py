"""The times of messages in librdkafka's memory.

The public function for them is called message by message, which costs as much as all the rest. The
time lies behind the public part of a message, where it has lain since version 1.0. Whether it does
in the library at hand is found out, not believed: the first messages of a process are read both
ways, and only if all agree the direct way is taken from then on.
"""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_source.consumers.native.layout_verification import ProvenLayout
from kafka_source.consumers.native.librdkafka import Library, MessageStruct

_KIND_AT: Final = ctypes.sizeof(MessageStruct) + 20
_TIME_AT: Final = ctypes.sizeof(MessageStruct) + 24
"""Behind two pointers and an integer of flags: an integer for the kind, then the time."""

Kinds = npt.NDArray[np.int32]
Millis = npt.NDArray[np.int64]


class MessageTimes(ProvenLayout):
    """Reads kinds (-1 none, 0 made, 1 appended: Java's and Spark's numbers) and milliseconds (-1
    where there is none)."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def of(self, addresses: npt.NDArray[np.int64]) -> tuple[Kinds, Millis]:
        """The times of the messages at these addresses: records, not errors."""
        kinds, millis = self._read(addresses)
        return kinds - np.int32(1), np.where(kinds == 0, np.int64(-1), millis)

    def _read(self, addresses: npt.NDArray[np.int64]) -> tuple[Kinds, Millis]:
        state = type(self)
        if state._differ:
            return self.asked(addresses)
        kinds, millis = self.direct(addresses)
        if state.trusted():
            return kinds, millis
        asked_kinds, asked_millis = self.asked(addresses)
        if (kinds == asked_kinds).all() and (millis == asked_millis).all():
            state._agreed += int(np.count_nonzero(asked_millis > 0))
        else:
            state._differ = True
        return asked_kinds, asked_millis

    def direct(self, addresses: npt.NDArray[np.int64]) -> tuple[Kinds, Millis]:
        """Read where they lie."""
        first = int(addresses.min())
        size = int(addresses.max()) - first
        places = (addresses - first) >> 3
        kinds: Kinds = np.ndarray(
            size // 8 + 1, np.int32, pa.foreign_buffer(first + _KIND_AT, size + 4), strides=(8,)
        )
        millis: Millis = np.ndarray(
            size // 8 + 1, np.int64, pa.foreign_buffer(first + _TIME_AT, size + 8)
        )
        return kinds[places], millis[places]

    def asked(self, addresses: npt.NDArray[np.int64]) -> tuple[Kinds, Millis]:
        """Asked for, one by one."""
        count = len(addresses)
        kinds = np.empty(count, np.int32)
        first = kinds.ctypes.data
        places = range(first, first + kinds.nbytes, kinds.itemsize)
        calls = map(self._library.message_timestamp, addresses.tolist(), places)
        return kinds, np.fromiter(calls, np.int64, count)
