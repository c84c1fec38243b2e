"""Consumers, kept for the life of a worker process and lent to one task at a time.

Making one, its connections and what it learns about the cluster costs more than a small batch. A
client of librdkafka lives in threads, so it must not cross a fork: a child process begins with none
and never touches those of its parent, not even to close them.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from kafka_source.client_properties import GROUP_ID, ClientProperties
from kafka_source.librdkafka import library
from kafka_source.message_consumer import MessageConsumer
from kafka_source.native_consumer import NativeConsumer
from kafka_source.partition_consumer import PartitionConsumer
from kafka_source.tuning import SETTINGS, Tuning
from task_grouping.identifiers import StreamName

IDLE_S: Final = 300.0
"""Consumers that rested so long are closed when the next one is lent or given back."""

MOST_RESTING: Final = 8
"""Consumers of one process that may rest: a process has tasks of several queries, one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerKey:
    """What makes two consumers alike."""

    client: ClientProperties
    group_id: str
    headers: bool = False
    tuning: Tuning = Tuning.BULK


def settings_of(key: ConsumerKey) -> dict[str, str]:
    """What a consumer is made with beside the properties of its client."""
    told = key.client.config()
    settings = {name: value for name, value in SETTINGS[key.tuning].items() if name not in told}
    return {**settings, GROUP_ID: key.group_id}


def _open(key: ConsumerKey) -> PartitionConsumer:
    native = library()
    if native is not None:
        return NativeConsumer(native, key.client, settings_of(key), headers=key.headers)
    return MessageConsumer(key.client, settings_of(key), headers=key.headers)


@dataclass(slots=True)
class ConsumerPool:
    """Consumers at rest, by key, each with the time since when; the last given back comes last.

    `record_bytes` is what a record of each topic took lately, as this process saw it."""

    make: Callable[[ConsumerKey], PartitionConsumer] = _open
    monotonic: Callable[[], float] = time.monotonic
    record_bytes: dict[StreamName, float] = field(default_factory=dict)
    _resting: list[tuple[ConsumerKey, float, PartitionConsumer]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _process: int = field(default_factory=os.getpid)

    @contextmanager
    def lend(self, key: ConsumerKey) -> Iterator[PartitionConsumer]:
        """A consumer for this thread, made if none rests. After an error it is closed, since
        nobody knows what it is in the middle of."""
        consumer = self._taken(key) or self.make(key)
        process = os.getpid()
        try:
            yield consumer
            consumer.place({})
        except BaseException:
            if os.getpid() == process:
                consumer.close()
            raise
        self._give_back(key, consumer)

    def close(self) -> None:
        """Close all that rest."""
        self._forget_those_of_a_parent()
        with self._lock:
            resting, self._resting = self._resting, []
        for _, _, consumer in resting:
            consumer.close()

    def _taken(self, key: ConsumerKey) -> PartitionConsumer | None:
        self._forget_those_of_a_parent()
        self._expire(IDLE_S, MOST_RESTING)
        with self._lock:
            for place in reversed(range(len(self._resting))):
                if self._resting[place][0] == key:
                    return self._resting.pop(place)[2]
        return None

    def _give_back(self, key: ConsumerKey, consumer: PartitionConsumer) -> None:
        with self._lock:
            self._resting.append((key, self.monotonic(), consumer))
        self._expire(IDLE_S, MOST_RESTING)

    def _expire(self, idle_s: float, most: int) -> None:
        now = self.monotonic()
        with self._lock:
            young = [entry for entry in self._resting if now - entry[1] <= idle_s]
            stay = young[-most:]
            gone = [entry for entry in self._resting if entry not in stay]
            self._resting = stay
        for _, _, consumer in gone:
            consumer.close()

    def _forget_those_of_a_parent(self) -> None:
        if os.getpid() != self._process:
            # Held for good, so that nothing is destroyed: their threads are in another process.
            for _, _, consumer in self._resting:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(consumer))
            self._resting = []
            self._lock = threading.Lock()
            self._process = os.getpid()


PROCESS_WIDE: Final = ConsumerPool()

atexit.register(PROCESS_WIDE.close)
