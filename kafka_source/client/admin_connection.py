"""One AdminClient of a process, with a thread that listens to what it says meanwhile.

Lost connections and refused logins are not answers to any request: librdkafka tells them aside and
goes on trying, while the request only times out. So they are kept here for whoever waits.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, NoReturn, TypeVar

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from kafka_source.client.client_config import ClientRole, create_client
from kafka_source.client.error_translation import ErrorKind, error_kind
from kafka_source.properties.translation import ClientProperties

T = TypeVar("T")

_POLL_S: Final = 0.25
_JOIN_S: Final = 5.0


class ClientErrors:
    """What a client said aside, numbered from 1. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._cleared = 0
        self._last: dict[bool, tuple[int, KafkaError]] = {}

    def record(self, error: KafkaError) -> None:
        """To be told of each."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return  # it sums up what was said before
        with self._lock:
            self._count += 1
            self._last[error_kind(error) is ErrorKind.ACCESS] = (self._count, error)

    def clear(self) -> None:
        """Brokers have answered, or an error was raised: what was heard so far is past."""
        with self._lock:
            self._cleared = self._count

    def mark(self) -> int:
        """Return the number of the last error so far."""
        with self._lock:
            return self._count

    def access_error(self, since: int = 0) -> KafkaError | None:
        """Return the last recent refused login or untrusted certificate after a `mark`. librdkafka
        reconnects within seconds, so a lasting one is reported again."""
        return self._since(True, since)

    def connection_error(self) -> KafkaError | None:
        """Return the last other recent error, such as a refused connection."""
        return self._since(False, 0)

    def _since(self, access: bool, since: int) -> KafkaError | None:
        with self._lock:
            number, error = self._last.get(access, (0, None))
            return error if number > max(self._cleared, since) else None


class AdminConnection:
    """Lives as long as somebody holds it. Not to be pickled, nor used in another process.

    Raises InvalidOptionsError when librdkafka refuses the properties.
    """

    def __init__(self, properties: ClientProperties) -> None:
        self.errors = ClientErrors()
        self.properties = properties
        self.has_responded = False
        """Whether brokers have answered once."""
        self._process = os.getpid()
        self._renewing = threading.Lock()
        self._open()

    def _open(self) -> None:
        self.admin = create_client(
            AdminClient, self.properties, role=ClientRole.ADMIN, on_error=self.errors.record
        )
        stop = threading.Event()
        # The thread knows the client alone, or the connection would live as long as the thread.
        self._poller = threading.Thread(
            target=_poll_events, args=(self.admin, stop), name="kafka-admin-listener", daemon=True
        )
        self._poller.start()
        self._finalizer = weakref.finalize(self, stop.set)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a connection stays in its process: call connect() where it is needed")

    def check_process(self) -> None:
        """RuntimeError in a process that was forked from the one that made this: its threads are
        not there, and nothing would be answered."""
        if os.getpid() != self._process:
            raise RuntimeError("a connection stays in its process: call connect() after a fork")

    def renew(self) -> None:
        """Another client, which remembers no leaders. What the one before was asked may stay
        without an answer."""
        with self._renewing:
            stop = self._finalizer
            self._open()
            stop()

    def close(self) -> None:
        """Stop listening; the client goes with the last who holds it."""
        self._finalizer()
        self._poller.join(_JOIN_S)


def _poll_events(admin: AdminClient, stop: threading.Event) -> None:
    while not stop.is_set():
        admin.poll(_POLL_S)


def run_in_thread(function: Callable[[], T]) -> Future[T]:
    """A call that only blocks, as a future. The thread does not hold up the end of the process."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001  (handed to whoever waits)
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="kafka-admin-call", daemon=True).start()
    return future
