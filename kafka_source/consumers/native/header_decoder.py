"""Decodes the headers of many records from the bytes of Kafka's protocol.

A record ends with the number of its headers and, for each, the size of its name, the name, the size
of its value (-1: null) and the value. Numbers are zigzag varints, seven bits to a byte: "Record" in
Kafka's description of its message format.

The first headers of all records are decoded together, then the second ones, and so on, each time by
a few calls of numpy. The last few records with more headers are decoded one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Memory = npt.NDArray[np.uint8]

_MAX_SINGLE_ROWS: Final = 24
"""At most this number of records is decoded one by one, which is then as fast."""
_MAX_BITS: Final = 35
"""The bits of the longest varint of 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderPositions:
    """Positions of headers: `counts` has an entry for each record, the others have one for each
    header, in order. Positions are indexes into the memory; a null value has position -1, size
    0."""

    counts: Numbers
    names: Numbers
    name_sizes: Numbers
    values: Numbers
    value_sizes: Numbers


def find_headers(memory: Memory, begins: Numbers, ends: Numbers) -> HeaderPositions | None:
    """Return the positions of the headers that each record has between its begin and its end (equal
    if it has none); None if the bytes do not follow the protocol."""
    counts = np.zeros(len(begins), np.int64)
    rows = np.flatnonzero(ends > begins)
    found, at = _varints(memory, begins[rows], ends[rows])
    found = np.maximum(found, 0)
    # A header takes at least two bytes.
    if (2 * found > ends[rows] - at).any():
        return None
    counts[rows] = found
    firsts = np.cumsum(counts) - counts
    places = np.empty((4, int(counts.sum())), np.int64)
    rows, at = rows[found > 0], at[found > 0]
    number = 0
    while len(rows) > _MAX_SINGLE_ROWS:
        end = ends[rows]
        name_sizes, names = _varints(memory, at, end)
        sizes_at = names + name_sizes
        if (name_sizes < 0).any() or (sizes_at >= end).any():
            return None
        value_sizes, values = _varints(memory, sizes_at, end)
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
    return HeaderPositions(
        counts=counts,
        names=places[0],
        name_sizes=places[1],
        values=places[2],
        value_sizes=places[3],
    )


def _varints(memory: Memory, at: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """Decode the varints at these positions; also return the positions after them, which are after
    the end if a varint does not end before it. No byte at or after the end is read."""
    byte = memory[np.minimum(at, ends - 1)].astype(np.int64)
    number, behind = byte, at + 1
    more = byte > 127
    if more.any():
        number = byte & 127
        for shift in range(7, _MAX_BITS, 7):
            byte = memory[np.minimum(behind, ends - 1)].astype(np.int64)
            number += np.where(more, (byte & 127) << shift, 0)
            behind += more
            more &= byte > 127
            if not more.any():
                break
        behind = np.where(more, ends + 1, behind)
    return (number >> 1) ^ -(number & 1), behind


def _headers(rest: bytes, count: int, place: int) -> list[tuple[int, int, int, int]] | None:
    """Return a row of `HeaderPositions` for each header of `rest`, which starts at `place`."""
    headers = []
    at = 0
    try:
        for _ in range(count):
            name_size, name = _varint(rest, at)
            value_size, value = _varint(rest, name + name_size)
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


def _varint(rest: bytes, at: int) -> tuple[int, int]:
    """Decode a varint; also return the position after it. Raises IndexError if it does not end."""
    byte, number = rest[at], rest[at] & 127
    for shift in range(7, _MAX_BITS, 7):
        if byte < 128:
            break
        at += 1
        byte = rest[at]
        number += (byte & 127) << shift
    if byte > 127:
        raise IndexError(at)
    return (number >> 1) ^ -(number & 1), at + 1
