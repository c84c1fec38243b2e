"""Reads messages of the media type `application/vnd.amazon.eventstream` from chunks of bytes.

botocore's own reader appends each chunk to what it has, which copies a message of a megabyte many
times; and the size of a message must be known before the rest of it is received, so that memory can
be reserved. Each complete message is decoded by botocore.

Source: "Event stream encoding", Amazon Transcribe developer guide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, cast

from botocore.eventstream import EventStreamBuffer, EventStreamMessage, ParserError

PRELUDE_BYTES: Final = 12
"""Total length, length of the headers and a checksum, four bytes each."""
MAX_MESSAGE_BYTES: Final = 24 << 20
"""The longest message that botocore decodes."""


class BrokenStreamError(Exception):
    """The bytes end within a message, or are not a message."""


class RawStream(Protocol):
    """The body of a response, as urllib3 has it."""

    def stream(self) -> Iterator[bytes]:
        """Yield the bytes in the order of their arrival, as they arrive."""
        ...

    def close(self) -> None:
        """Close the connection of the response, or its stream."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message: its headers that are text, and its payload."""

    headers: Mapping[str, str]
    payload: bytes


class MessageStream:
    """The messages of a response, one after the other. Used by one thread.

    It is also what botocore reads the first message from, by `stream`.
    """

    def __init__(self, raw: RawStream) -> None:
        self._raw = raw
        self._chunks = raw.stream()
        self._received = bytearray()

    def next_size(self) -> int | None:
        """Wait for the beginning of a message; return the message's size, or None at the end."""
        if not self._receive(PRELUDE_BYTES):
            return None
        size = int.from_bytes(self._received[:4], "big")
        if not PRELUDE_BYTES < size <= MAX_MESSAGE_BYTES:
            raise BrokenStreamError(f"a message of {size} bytes")
        return size

    def next_message(self, size: int) -> Message:
        """Return the message of which `next_size` returned the size."""
        buffer = EventStreamBuffer()
        buffer.add_data(self._take(size))
        try:
            message: EventStreamMessage = next(buffer)
        except (ParserError, StopIteration, ValueError, KeyError) as error:
            # Without the text: it may contain a part of the message.
            raise BrokenStreamError(f"a malformed message ({type(error).__name__})") from None
        headers = cast("Mapping[str, str]", message.headers)
        return Message(headers=headers, payload=message.payload)

    def stream(self) -> Iterator[bytes]:
        """Yield the bytes of one message at a time."""
        while (size := self.next_size()) is not None:
            yield self._take(size)

    def close(self) -> None:
        """Close the response."""
        self._raw.close()

    def _take(self, size: int) -> bytes:
        if not self._receive(size):
            raise BrokenStreamError("the end of the response in place of a message")
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def _receive(self, size: int) -> bool:
        """Receive until there are `size` bytes; return False at the end of the response."""
        while len(self._received) < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                if self._received:
                    raise BrokenStreamError("the end of the response within a message")
                return False
            self._received += chunk
        return True
