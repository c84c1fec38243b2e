"""Consumers, kept for the life of a worker process and lent to one task at a time.

Making one, its connections and what it learns about the cluster costs more than a small batch. A
client of librdkafka lives in threads, so it must not cross a fork: a child process begins with none
and never touches those of its parent, not even to close them.

Nor does a consumer go on with a topic that was created again: librdkafka keeps a partition's leader
and takes no news of one from an earlier epoch, and epochs begin anew with the topic.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from kafka_source.client.consumer_api import PartitionConsumer
from kafka_source.consumers.confluent_consumer import MessageConsumer
from kafka_source.consumers.fetch_profile import Tuning, settings
from kafka_source.consumers.native.librdkafka import library
from kafka_source.consumers.native.native_consumer import NativeConsumer
from kafka_source.model.topic import TopicId
from kafka_source.properties.translation import GROUP_ID, ClientProperties
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
    return {**settings(key.tuning, told), GROUP_ID: key.group_id}


def open_consumer(key: ConsumerKey) -> PartitionConsumer:
    """Create a consumer, which connects later. Raises the errors of `create_client`."""
    native = library()
    if native is not None:
        return NativeConsumer(native, key.client, settings_of(key), headers=key.headers)
    return MessageConsumer(key.client, settings_of(key), headers=key.headers)


def check_consumers(
    client: ClientProperties,
    group_id: str,
    *,
    make: Callable[[ConsumerKey], PartitionConsumer] = open_consumer,
) -> None:
    """Create and close every kind of consumer that tasks use, so that a configuration that
    librdkafka refuses is an error on the driver, before anything is read. Raises the errors of
    `create_client`."""
    for tuning in Tuning:
        group = client.config().get(GROUP_ID, group_id)
        make(ConsumerKey(client=client, group_id=group, tuning=tuning)).close()


Topics = Mapping[StreamName, TopicId]
"""Topics and their ids, of those whose id is known."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Resting:
    """A consumer at rest, since when, and what it has read."""

    key: ConsumerKey
    since: float
    consumer: PartitionConsumer
    topics: Topics

    def knows_another(self, topics: Topics) -> bool:
        """Whether it has read a topic of which one of `topics` has the name alone."""
        return any(self.topics.get(name, topics[name]) != topics[name] for name in topics)


@dataclass(slots=True)
class ConsumerPool:
    """Consumers at rest; the last given back comes last.

    `record_bytes` is what a record of each topic took lately, as this process saw it."""

    make: Callable[[ConsumerKey], PartitionConsumer] = open_consumer
    monotonic: Callable[[], float] = time.monotonic
    record_bytes: dict[StreamName, float] = field(default_factory=dict)
    _resting: list[_Resting] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _process: int = field(default_factory=os.getpid)

    @contextmanager
    def lend(self, key: ConsumerKey, topics: Topics) -> Iterator[PartitionConsumer]:
        """A consumer for this thread that is to read `topics`, made if none rests. After an error
        it is closed, since nobody knows what it is in the middle of."""
        taken = self._taken(key, topics)
        consumer = self.make(key) if taken is None else taken.consumer
        process = os.getpid()
        try:
            yield consumer
            consumer.assign({})
        except BaseException:
            if os.getpid() == process:
                consumer.close()
            raise
        known = {} if taken is None else taken.topics
        self._give_back(key, consumer, {**known, **topics})

    def close(self) -> None:
        """Close all that rest."""
        self._forget_those_of_a_parent()
        with self._lock:
            resting, self._resting = self._resting, []
        for one in resting:
            one.consumer.close()

    def _taken(self, key: ConsumerKey, topics: Topics) -> _Resting | None:
        self._forget_those_of_a_parent()
        self._expire(IDLE_S, MOST_RESTING)
        with self._lock:
            alike = [one for one in self._resting if one.key == key]
            outdated = [one for one in alike if one.knows_another(topics)]
            taken = next((one for one in reversed(alike) if one not in outdated), None)
            gone = {*outdated, taken}
            self._resting = [one for one in self._resting if one not in gone]
        for one in outdated:
            one.consumer.close()
        return taken

    def _give_back(self, key: ConsumerKey, consumer: PartitionConsumer, topics: Topics) -> None:
        rests = _Resting(key=key, since=self.monotonic(), consumer=consumer, topics=topics)
        with self._lock:
            self._resting.append(rests)
        self._expire(IDLE_S, MOST_RESTING)

    def _expire(self, idle_s: float, most: int) -> None:
        now = self.monotonic()
        with self._lock:
            young = [one for one in self._resting if now - one.since <= idle_s]
            stay = young[-most:]
            gone = [one for one in self._resting if one not in stay]
            self._resting = stay
        for one in gone:
            one.consumer.close()

    def _forget_those_of_a_parent(self) -> None:
        if os.getpid() != self._process:
            # Held for good, so that nothing is destroyed: their threads are in another process.
            for one in self._resting:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(one.consumer))
            self._resting = []
            self._lock = threading.Lock()
            self._process = os.getpid()


PROCESS_WIDE: Final = ConsumerPool()

atexit.register(PROCESS_WIDE.close)
