"""Where the headers of many records lie in the bytes in which Kafka's protocol has them. Pure.

A record ends with the number of its headers and, of each, the size of its name, the name, the size
of its value (-1: null) and the value. Numbers are of a variable length, seven bits to a byte,
zigzag. See "Record" in Kafka's description of its message format.

The first headers of all records are found together, then the second ones, and so on, by a few
calls of numpy for all; of the last records that have more, one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Memory = npt.NDArray[np.uint8]

_FEW: Final = 24
"""So many records are as fast one by one."""
_MOST_BITS: Final = 35
"""In which a number of 32 bits ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderPlaces:
    """`counts` has a number for each record, the others have one for each header, in order. Places
    are indexes into the memory; that of a null value is -1, and its size 0."""

    counts: Numbers
    names: Numbers
    name_sizes: Numbers
    values: Numbers
    value_sizes: Numbers


def find_headers(memory: Memory, begins: Numbers, ends: Numbers) -> HeaderPlaces | None:
    """The headers of records of which each has those between its begin and its end; both alike: it
    has none. None when anything there is not as the protocol has it."""
    counts = np.zeros(len(begins), np.int64)
    rows = np.flatnonzero(ends > begins)
    found, at = _numbers(memory, begins[rows], ends[rows])
    found = np.maximum(found, 0)
    # The least a header takes is two bytes.
    if (2 * found > ends[rows] - at).any():
        return None
    counts[rows] = found
    firsts = np.cumsum(counts) - counts
    places = np.empty((4, int(counts.sum())), np.int64)
    rows, at = rows[found > 0], at[found > 0]
    number = 0
    while len(rows) > _FEW:
        end = ends[rows]
        name_sizes, names = _numbers(memory, at, end)
        sizes_at = names + name_sizes
        if (name_sizes < 0).any() or (sizes_at >= end).any():
            return None
        value_sizes, values = _numbers(memory, sizes_at, end)
        present, sizes = value_sizes >= 0, np.maximum(value_sizes, 0)
        at = values + sizes
        if (value_sizes < -1).any() or (at > end).any():
            return None
        where = firsts[rows] + number
        places[0, where], places[1, where] = names, name_sizes
        places[2, where], places[3, where] = np.where(present, values, -1), sizes
        number += 1
        more = counts[rows] > number
        if (at[~more] != end[~more]).any():
            return None
        rows, at = rows[more], at[more]
    for row, begin in zip(rows.tolist(), at.tolist(), strict=True):
        rest = memory[begin : ends[row]].tobytes()
        headers = _headers(rest, int(counts[row]) - number, begin)
        if headers is None:
            return None
        places[:, firsts[row] + number : firsts[row] + counts[row]] = np.array(headers).T
    return HeaderPlaces(
        counts=counts,
        names=places[0],
        name_sizes=places[1],
        values=places[2],
        value_sizes=places[3],
    )


def _numbers(memory: Memory, at: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers at these places, and the places behind them: behind the end where none ends
    before it. Nothing is read from the end on."""
    byte = memory[np.minimum(at, ends - 1)].astype(np.int64)
    number, behind = byte, at + 1
    more = byte > 127
    if more.any():
        number = byte & 127
        for shift in range(7, _MOST_BITS, 7):
            byte = memory[np.minimum(behind, ends - 1)].astype(np.int64)
            number += np.where(more, (byte & 127) << shift, 0)
            behind += more
            more &= byte > 127
            if not more.any():
                break
        behind = np.where(more, ends + 1, behind)
    return (number >> 1) ^ -(number & 1), behind


def _headers(rest: bytes, count: int, place: int) -> list[tuple[int, int, int, int]] | None:
    """A row of `HeaderPlaces` for each header of `rest`, which lies at `place`."""
    headers = []
    at = 0
    try:
        for _ in range(count):
            name_size, name = _number(rest, at)
            value_size, value = _number(rest, name + name_size)
            if name_size < 0 or value_size < -1:
                return None
            at = value + max(value_size, 0)
            headers.append(
                (
                    place + name,
                    name_size,
                    -1 if value_size < 0 else place + value,
                    max(value_size, 0),
                )
            )
    except IndexError:
        return None
    return headers if at == len(rest) else None


def _number(rest: bytes, at: int) -> tuple[int, int]:
    """The number there, and the place behind it. IndexError where none ends."""
    byte, number = rest[at], rest[at] & 127
    for shift in range(7, _MOST_BITS, 7):
        if byte < 128:
            break
        at += 1
        byte = rest[at]
        number += (byte & 127) << shift
    if byte > 127:
        raise IndexError(at)
    return (number >> 1) ^ -(number & 1), at + 1
