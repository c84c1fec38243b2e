"""The headers of messages in librdkafka's memory.

Kafka's protocol has names as UTF-8, and nothing checks that. Java reads what is none with the
replacement character, and so does this: confluent-kafka cannot read such a record's headers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from kafka_source.arrow import Headers
from kafka_source.librdkafka import NO_ENTRY, Library
from ssp_common.errors import InvalidRequestError


def native_headers(
    library: Library, addresses: Sequence[int], name_of: Callable[[int], str]
) -> list[Headers | None]:
    """Of the messages at these addresses, each with its headers or None.

    `name_of` a row is how an error calls its record. Raises InvalidRequestError where the bytes are
    no headers.
    """
    headers, name = ctypes.c_void_p(), ctypes.c_char_p()
    value, size = ctypes.c_void_p(), ctypes.c_size_t()
    found = ctypes.addressof(headers)
    one = ctypes.addressof(name), ctypes.addressof(value), ctypes.addressof(size)
    ask, get, copy = library.message_headers, library.header_get_all, ctypes.string_at
    result: list[Headers | None] = []
    for row, address in enumerate(addresses):
        code = ask(address, found)
        if code == NO_ENTRY:
            result.append(None)
            continue
        if code:
            raise unreadable(name_of(row))
        pairs: list[tuple[str, bytes | None]] = []
        where = headers.value
        while not get(where, len(pairs), *one):
            key = (name.value or b"").decode(errors="replace")
            pairs.append((key, copy(value.value, size.value) if value.value else None))
        result.append(pairs)
    return result


def unreadable(record: str) -> InvalidRequestError:
    """What is raised of a record whose headers cannot be had."""
    return InvalidRequestError(
        record,
        found="headers that the client cannot read",
        expected="headers as Kafka's protocol has them, with names in UTF-8",
        next_step="read without includeHeaders, or begin behind this record by startingOffsets; "
        "mend the producer",
    )
