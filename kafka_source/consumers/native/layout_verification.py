"""Verifies the memory layout after the public part of librdkafka's messages."""

from __future__ import annotations

from typing import ClassVar, Final

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
