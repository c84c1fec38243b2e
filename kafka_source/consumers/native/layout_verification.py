"""Whether what librdkafka keeps behind a message's public part lies where it is read."""

from __future__ import annotations

from typing import ClassVar, Final

ENOUGH: Final = 64
"""So many messages are read both ways before the direct one is trusted."""


class ProvenLayout:
    """What is read of messages in two ways: directly, where it lies in the library at hand if that
    is like the others, or by asking the library. Each subclass counts for itself, and once for the
    whole process: where the first messages agree in all, the direct way is trusted from then on."""

    _agreed: ClassVar[int] = 0
    _differ: ClassVar[bool] = False

    @classmethod
    def trusted(cls) -> bool:
        """Whether it is read where it lies."""
        return cls._agreed >= ENOUGH and not cls._differ
