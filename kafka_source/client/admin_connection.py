"""An AdminClient, with a thread that polls its error callback.

Lost connections and failed logins are not answers to a request: librdkafka reports them by a
callback and keeps trying, while the request only times out. They are recorded here, so that a
request that times out can name them.

A request that waits for a dead broker is never sent to another one, and neither are later requests
for the same controller, leader or coordinator. So the client of a request without an answer is
replaced, once for all its users: the new one starts from the bootstrap servers.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import cache
from typing import Any, Final, NoReturn, TypeVar

from confluent_kafka import KafkaError
from confluent_kafka import admin as sdk

from spark_ssp.kafka_source.client.client_config import ClientRole, create_client
from spark_ssp.kafka_source.client.error_translation import ErrorKind, error_kind
from spark_ssp.kafka_source.client.retry import SendLimits
from spark_ssp.kafka_source.options.client_properties import ClientProperties

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

_POLL_S: Final = 0.25
_WATCH_S: Final = 0.1
"""The interval at which a wait checks for reported errors."""
_GRACE_S: Final = 1.0
"""The time in which librdkafka itself ends a request that has timed out."""
_JOIN_S: Final = 5.0
_RECHECK_S: Final = 0.05
_ALONE: Final = 2
"""The references to an object that is only in one list, while they are counted."""

NO_RESPONSE: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._UNKNOWN_BROKER,
        KafkaError._WAIT_COORD,
    }
)
"""The errors of librdkafka for a request that no broker has answered."""


class AdminClient(sdk.AdminClient):  # noqa: TID251  (this is the one to use)
    """confluent-kafka's AdminClient, destroyed by a separate thread. librdkafka completes a future
    in a thread of the client. Python code runs there, so the garbage collector may start there; if
    it destroyed that client, librdkafka would abort the process. It still refers to the client for
    a while after `__del__`: the other thread waits until nothing does."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._process = os.getpid()
        _start_destroyer(self._process)
        super().__init__(dict(config))

    def __del__(self) -> None:
        if self._process == os.getpid():
            _unreferenced.put(self)
        else:
            # Its threads run in the parent process: destroying it would wait for them.
            _inherited.append(self)


_unreferenced: queue.SimpleQueue[AdminClient] = queue.SimpleQueue()
_inherited: Final[list[AdminClient]] = []


@cache
def _start_destroyer(process: int) -> None:
    global _unreferenced
    _unreferenced = clients = queue.SimpleQueue[AdminClient]()

    def run() -> None:
        held: list[AdminClient] = []
        while True:
            with suppress(queue.Empty):
                held.append(clients.get(timeout=_RECHECK_S if held else None))
            for index in reversed(range(len(held))):
                if sys.getrefcount(held[index]) <= _ALONE:
                    del held[index]

    name = f"kafka-admin-destroyer-{process}"
    threading.Thread(target=run, name=name, daemon=True).start()


class ClientErrors:
    """The errors reported by a client's error callback, numbered from 1. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._cleared = 0
        self._last: dict[bool, tuple[int, KafkaError]] = {}

    def record(self, error: KafkaError) -> None:
        """Record an error; the client's error callback."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return  # it only summarizes earlier errors
        with self._lock:
            self._count += 1
            self._last[error_kind(error) is ErrorKind.ACCESS] = (self._count, error)

    def clear(self) -> None:
        """Forget the errors so far: brokers have answered since, or an error was raised."""
        with self._lock:
            self._cleared = self._count

    def mark(self) -> int:
        """Return the number of the last error."""
        with self._lock:
            return self._count

    def access_error(self, since: int = 0) -> KafkaError | None:
        """Return the last failed login or rejected certificate after `since` (from `mark`) that was
        not cleared. librdkafka reconnects within seconds, so a lasting one is reported again."""
        return self._since(True, since)

    def connection_error(self, since: int = 0) -> KafkaError | None:
        """Return the last other error after `since` that was not cleared, such as a refused
        connection."""
        return self._since(False, since)

    def _since(self, access: bool, since: int) -> KafkaError | None:
        with self._lock:
            number, error = self._last.get(access, (0, None))
            return error if number > max(self._cleared, since) else None


class AdminConnection:
    """A connection to one cluster, open as long as it is referenced. It cannot be pickled or used
    in another process. Raises InvalidOptionsError if librdkafka rejects the properties."""

    def __init__(self, properties: ClientProperties) -> None:
        self.errors = ClientErrors()
        self.properties = properties
        self.has_responded = False
        """True once a broker has answered."""
        self._process = os.getpid()
        self._renewal = threading.Lock()
        self._open()

    def _open(self) -> None:
        self.admin = create_client(
            AdminClient, self.properties, role=ClientRole.ADMIN, on_error=self.errors.record
        )
        stop = threading.Event()
        # The thread references only the client, or the connection would live as long as the thread.
        self._poller = threading.Thread(
            target=_poll_events, args=(self.admin, stop), name="kafka-admin-poller", daemon=True
        )
        self._poller.start()
        self._finalizer = weakref.finalize(self, stop.set)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a connection cannot be pickled: call connect() where it is needed")

    def check_process(self) -> None:
        """Raise RuntimeError in a forked child process, where the client's threads do not run and
        no request would be answered."""
        if os.getpid() != self._process:
            raise RuntimeError("a connection cannot be used after a fork: call connect() again")

    def request(
        self,
        send: Callable[[AdminClient], Mapping[K, Future[V]]],
        limits: SendLimits,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        is_rejected: Callable[[], bool] = lambda: False,
    ) -> Mapping[K, Future[V]] | None:
        """Send a request and wait until it is done. Return None if it has no answer: within the
        limits, or because its client was replaced meanwhile; its client is replaced then.
        `is_rejected` is called now and then; it may raise, and while it returns True the wait is
        not cut short."""
        client, mark, begun = self.admin, self.errors.mark(), monotonic()
        futures = send(client)
        failed_at: float | None = None
        pending = set(futures.values())
        while pending := wait(pending, timeout=_WATCH_S).not_done:
            now = monotonic()
            if failed_at is None and self.errors.connection_error(mark) is not None:
                failed_at = now
            cut_at = None if failed_at is None else failed_at + limits.after_failed_connect_s
            is_cut = not is_rejected() and cut_at is not None and now >= cut_at
            is_over = now - begun >= limits.timeout_s + _GRACE_S
            if is_cut or is_over or client is not self.admin:
                self.renew(client)
                return None
        return futures

    def renew(self, client: AdminClient) -> None:
        """Replace `client`, unless that was done already, by one without cached brokers. Requests
        of the previous client may stay unanswered."""
        with self._renewal:
            if client is self.admin:
                stop = self._finalizer
                self._open()
                stop()

    def close(self) -> None:
        """Stop polling; the client is destroyed with its last reference."""
        self._finalizer()
        self._poller.join(_JOIN_S)


def _poll_events(admin: AdminClient, stop: threading.Event) -> None:
    while not stop.is_set():
        admin.poll(_POLL_S)


def run_in_thread(function: Callable[[], T]) -> Future[T]:
    """Run a blocking call in a daemon thread, which does not delay the end of the process."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001  (passed on through the future)
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="kafka-admin-call", daemon=True).start()
    return future
