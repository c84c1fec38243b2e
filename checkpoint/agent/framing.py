"""Frames on the pipes between reader and agent: a four-byte length, then a pickle.

Both ends run the same code under the same user, and no other process has the pipes.
"""

from __future__ import annotations

import pickle
from typing import Final

_HEAD: Final = 4


def encode_frame(value: object) -> bytes:
    """Return the frame of a value."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(_HEAD, "big") + body


class FrameDecoder:
    """Decodes values from chunks of any size."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[object]:
        """Return the values that are now complete, in order."""
        self._pending += data
        values: list[object] = []
        begin = 0
        while len(self._pending) - begin >= _HEAD:
            body = begin + _HEAD
            end = body + int.from_bytes(self._pending[begin:body], "big")
            if len(self._pending) < end:
                break
            values.append(pickle.loads(memoryview(self._pending)[body:end].toreadonly()))
            begin = end
        del self._pending[:begin]
        return values
