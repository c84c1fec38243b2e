"""The consumer functions of librdkafka's public C interface, by ctypes, from the library that
confluent-kafka is linked with.

Source: `rdkafka.h` of librdkafka 2, whose functions and `rd_kafka_message_t` are stable within the
major version. `messages` and `headers` also read what follows the public part of a message, which
may move in any version: so only versions with a tested layout are used (`TESTED`). None is usable
on Windows, where an extension module does not export its linked libraries; and the layout below is
that of 64 bit, little endian.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any, Final

import confluent_kafka.cimpl

TESTED: Final = tuple((2, minor) for minor in range(14, 17))
"""The major and minor versions whose messages have the known layout: `make long` reads records with
each of them (`tests/support/environments/clients.py`)."""

_RELEASE: Final = 0xFF
"""The last byte of the version of a release."""

ERROR_TEXT: Final = 512
CONSUMER: Final = 1
"""RD_KAFKA_CONSUMER."""
NO_ENTRY: Final = -156
"""RD_KAFKA_RESP_ERR__NOENT."""

ERROR_CALLBACK: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
)
"""`error_cb(rk, err, reason, opaque)`: called by the thread that polls."""

LOG_CALLBACK: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p
)
"""`log_cb(rk, level, facility, text)`: with `log.queue`, called by the thread that polls."""


TOKEN_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
"""`oauthbearer_token_refresh_cb(rk, config, opaque)`: called by a thread of the library."""


class MessageStruct(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("err", ctypes.c_int32),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("_private", ctypes.c_void_p),
    )


class Library:
    """The functions that are used, with their types. Names are the library's without `rd_kafka_`.
    Functions that may wait release the interpreter's lock; those that are called for each message
    keep it, since acquiring it again costs more than the call."""

    def __init__(self, path: str) -> None:
        free, locked = ctypes.CDLL(path), ctypes.PyDLL(path)
        pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int

        def function(name: str, result: Any, *arguments: Any, library: Any = free) -> Any:
            found = getattr(library, f"rd_kafka_{name}")
            found.restype, found.argtypes = result, arguments
            return found

        size, long = ctypes.c_size_t, ctypes.c_int64
        self.version = function("version", number)
        self.conf_new = function("conf_new", pointer)
        self.conf_destroy = function("conf_destroy", None, pointer)
        self.conf_set = function("conf_set", number, pointer, text, text, text, size)
        self.conf_set_error_cb = function("conf_set_error_cb", None, pointer, ERROR_CALLBACK)
        self.conf_set_log_cb = function("conf_set_log_cb", None, pointer, LOG_CALLBACK)
        self.conf_set_token_cb = function(
            "conf_set_oauthbearer_token_refresh_cb", None, pointer, TOKEN_CALLBACK
        )
        self.conf_enable_sasl_queue = function("conf_enable_sasl_queue", None, pointer, number)
        self.sasl_in_background = function("sasl_background_callbacks_enable", pointer, pointer)
        self.set_token = function(
            "oauthbearer_set_token",
            number,
            pointer,
            text,
            long,
            text,
            pointer,
            size,
            text,
            size,
        )
        self.set_token_failure = function("oauthbearer_set_token_failure", number, pointer, text)
        self.set_log_queue = function("set_log_queue", number, pointer, pointer)
        self.new = function("new", pointer, number, pointer, text, size)
        self.destroy = function("destroy", None, pointer)
        self.poll_set_consumer = function("poll_set_consumer", number, pointer)
        self.consumer_close = function("consumer_close", number, pointer)
        self.queue_get_consumer = function("queue_get_consumer", pointer, pointer)
        self.queue_destroy = function("queue_destroy", None, pointer)
        self.list_new = function("topic_partition_list_new", pointer, number)
        self.list_add = function("topic_partition_list_add", pointer, pointer, text, ctypes.c_int32)
        self.list_set_offset = function(
            "topic_partition_list_set_offset", number, pointer, text, ctypes.c_int32, long
        )
        self.list_destroy = function("topic_partition_list_destroy", None, pointer)
        self.assign = function("assign", number, pointer, pointer)
        self.incremental_assign = function("incremental_assign", pointer, pointer, pointer)
        self.incremental_unassign = function("incremental_unassign", pointer, pointer, pointer)
        self.error_code = function("error_code", number, pointer)
        self.error_destroy = function("error_destroy", None, pointer)
        self.consume_batch_queue = function(
            "consume_batch_queue", ctypes.c_ssize_t, pointer, number, pointer, size
        )
        self.topic_name = function("topic_name", text, pointer)
        # Addresses of results are passed as numbers, which ctypes converts twice as fast.
        self.message_timestamp = function(
            "message_timestamp", long, pointer, pointer, library=locked
        )
        self.message_headers = function("message_headers", number, pointer, pointer, library=locked)
        self.header_get_all = function(
            "header_get_all", number, pointer, size, pointer, pointer, pointer, library=locked
        )
        self.message_destroy = function("message_destroy", None, pointer, library=locked)


@cache
def load() -> Library | str:
    """Return the library, or the reason for which its memory is not read."""
    if sys.platform == "win32" or sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return "another platform than 64 bit, little endian, with exported libraries"
    name, version = confluent_kafka.cimpl.libversion()
    if not is_tested(version):
        return f"librdkafka {name}, a version of unknown layout"
    try:
        found = Library(confluent_kafka.cimpl.__file__)
    except (OSError, AttributeError) as error:
        return f"librdkafka {name} without its functions: {error}"
    return found if int(found.version()) == version else "more than one librdkafka"


def is_tested(version: int) -> bool:
    """Return whether the layout of a version is known: 0x021001ff is the release 2.16.1, and any
    other last byte a version before it."""
    release = version & _RELEASE == _RELEASE
    return release and (version >> 24, version >> 16 & 0xFF) in TESTED
