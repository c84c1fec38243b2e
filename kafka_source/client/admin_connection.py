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

from kafka_source.client.client_config import Role, make_client
from kafka_source.client.error_translation import FaultKind, fault_kind
from kafka_source.properties.translation import ClientProperties

T = TypeVar("T")

_POLL_S: Final = 0.25
_LEAVE_S: Final = 5.0


class Heard:
    """What a client said aside, numbered from 1. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._settled = 0
        self._last: dict[bool, tuple[int, KafkaError]] = {}

    def hear(self, error: KafkaError) -> None:
        """To be told of each."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return  # it sums up what was said before
        with self._lock:
            self._count += 1
            self._last[fault_kind(error) is FaultKind.ACCESS] = (self._count, error)

    def settle(self) -> None:
        """Brokers have answered, or an error was raised: what was heard so far is past."""
        with self._lock:
            self._settled = self._count

    def mark(self) -> int:
        """Return the number of the last error so far."""
        with self._lock:
            return self._count

    def refusal(self, since: int = 0) -> KafkaError | None:
        """Return the last recent refused login or untrusted certificate after a `mark`. librdkafka
        reconnects within seconds, so a lasting one is reported again."""
        return self._since(True, since)

    def reason(self) -> KafkaError | None:
        """Return the last other recent error, such as a refused connection."""
        return self._since(False, 0)

    def _since(self, access: bool, since: int) -> KafkaError | None:
        with self._lock:
            number, error = self._last.get(access, (0, None))
            return error if number > max(self._settled, since) else None


class AdminConnection:
    """Lives as long as somebody holds it. Not to be pickled, nor used in another process.

    Raises InvalidOptionsError when librdkafka refuses the properties.
    """

    def __init__(self, properties: ClientProperties) -> None:
        self.heard = Heard()
        self.properties = properties
        self.answered = False
        """Whether brokers have answered once."""
        self._process = os.getpid()
        self._renewing = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self.admin = make_client(
            AdminClient, self.properties, role=Role.ADMIN, on_error=self.heard.hear
        )
        stop = threading.Event()
        # The thread knows the client alone, or the connection would live as long as the thread.
        self._listener = threading.Thread(
            target=_listen, args=(self.admin, stop), name="kafka-admin-listener", daemon=True
        )
        self._listener.start()
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
            self._begin()
            stop()

    def close(self) -> None:
        """Stop listening; the client goes with the last who holds it."""
        self._finalizer()
        self._listener.join(_LEAVE_S)


def _listen(admin: AdminClient, stop: threading.Event) -> None:
    while not stop.is_set():
        admin.poll(_POLL_S)


def in_thread(function: Callable[[], T]) -> Future[T]:
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
