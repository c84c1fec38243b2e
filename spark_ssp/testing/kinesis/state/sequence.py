"""Composes and decodes sequence numbers.

A number has 186 bits and 56 decimal digits, like those of the service. From the top:

    version (2) | era, 36 bits | shard, low 4 bits | index, 64 bits | 0, 8 bits
    | second of arrival, 36 bits | shard, 32 bits | version (2), 4 bits

The *era* is a number in seconds assigned to each stream creation, split and merge, never before the
clock and never twice in one service. So a child's numbers are larger than its parents', and a
number that cannot belong to a shard is detected.
"""

from __future__ import annotations

from dataclasses import dataclass

_VERSION = 2
_ERA_BITS = 36
_SECOND_BITS = 36
_MAX_SHARD = (1 << 32) - 1
MAX_SECOND = (1 << _SECOND_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The parts of a sequence number."""

    era: int
    shard_index: int
    index: int


def base(era: int, shard_index: int) -> int:
    """Return the part that all numbers of a shard share; `compose` adds the rest."""
    return (
        (_VERSION << 184)
        | ((era & ((1 << _ERA_BITS) - 1)) << 148)
        | ((shard_index & 0xF) << 144)
        | ((shard_index & _MAX_SHARD) << 4)
        | _VERSION
    )


def compose(shard_base: int, index: int, second: int) -> int:
    """Return the number of a shard's record `index` (0: the shard's StartingSequenceNumber)."""
    return shard_base | (index << 80) | ((second & MAX_SECOND) << 36)


def at_latest_second(number: int) -> int:
    """Return the largest number of the same record, whose time is unknown."""
    return number | (MAX_SECOND << 36)


def next_second(number: int) -> int:
    """Return the number of the same shard and index one second later."""
    return min(number + (1 << 36), at_latest_second(number))


def decode(number: int) -> Decoded | None:
    """Return the parts of a number of this layout, or None for any other number."""
    if number >> 184 != _VERSION or number & 0xF != _VERSION or (number >> 72) & 0xFF:
        return None
    shard_index = (number >> 4) & _MAX_SHARD
    if (number >> 144) & 0xF != shard_index & 0xF:
        return None
    return Decoded(
        era=(number >> 148) & ((1 << _ERA_BITS) - 1),
        shard_index=shard_index,
        index=(number >> 80) & ((1 << 64) - 1),
    )
