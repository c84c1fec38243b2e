"""Keeps consumers for the life of a worker process; one task at a time uses a consumer.

Creating a consumer, its connections and its metadata costs more than a small batch. A client of
librdkafka runs threads, so it must not cross a fork: a child process starts with an empty pool and
never touches the consumers of its parent, not even to close them.

A consumer is not reused for a topic that was created again: librdkafka ignores a partition leader
of an earlier epoch, and epochs restart with the topic.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.model.ranges import PartitionRange
from spark_ssp.kafka_source.model.topic import TopicId
from spark_ssp.kafka_source.options.client_properties import GROUP_ID, ClientProperties
from spark_ssp.kafka_source.options.property_names import RECEIVE_BYTES
from spark_ssp.kafka_source.reading.confluent_consumer import ConfluentConsumer
from spark_ssp.kafka_source.reading.consumer_api import PartitionConsumer
from spark_ssp.kafka_source.reading.librdkafka import Library, load
from spark_ssp.kafka_source.reading.native_consumer import NativeConsumer

_log = logging.getLogger(__name__)

# --- Settings -------------------------------------------------------------------------------------
#
# librdkafka requests up to 1 MB of each partition at a time, and prefetches more. Records after the
# end of a range are discarded; for a query that catches up by small batches that is most of them.
# The setting belongs to the consumer, so there are two kinds of consumers.
#
# librdkafka decompresses a whole answer at once, even if its queue is full, and each broker may
# answer at the same time. So the size of an answer before decompression bounds the memory of a
# consumer.


class FetchProfile(StrEnum):
    """The kind of a consumer."""

    BULK = "bulk"
    SMALL = "small"


DEFAULT_RECORD_BYTES: Final = 1024
"""The assumed size of records of a topic that was not read before."""

FETCH_BYTES: Final = "max.partition.fetch.bytes"
"""The maximum size of a fetch per partition. Brokers return at least one record batch, even a
larger one, and then of one partition at a time."""

RESPONSE_BYTES: Final = 1 << 20
"""The largest answer of a broker, compressed as stored, unless a single record batch is larger.
Measured on one machine with two cores, larger answers are not read any faster."""

_RESPONSE: Final = "fetch.max.bytes"

_SMALL_FETCH_BYTES: Final = 128 << 10
SMALL_RANGE_BYTES: Final = 4 * _SMALL_FETCH_BYTES
"""Above this size, many small fetches cost more than discarding surplus records."""

_COMMON: Final[Mapping[str, str]] = {
    # The end of a batch existed when it was planned. The only wait is for the end of the log after
    # control records, which brokers report by an empty response.
    "fetch.wait.max.ms": "2",
    # A full queue is checked again soon: the default, a second, starves a fast reader.
    "fetch.queue.backoff.ms": "2",
    _RESPONSE: str(RESPONSE_BYTES),
    # Counts only values. If keys or headers are larger, the number of messages below is the bound.
    "queued.max.messages.kbytes": "32768",
}

PROFILES: Final[Mapping[FetchProfile, Mapping[str, str]]] = {
    FetchProfile.BULK: {**_COMMON, "queued.min.messages": "20000"},
    # Records are not prefetched.
    FetchProfile.SMALL: {
        **_COMMON,
        "queued.min.messages": "1",
        FETCH_BYTES: str(_SMALL_FETCH_BYTES),
    },
}
"""Defaults of each kind: whole batches at full speed within bounded memory, or little more than the
range. Options `kafka.*` take precedence."""

_MESSAGE_BYTES: Final = "message.max.bytes"
_MESSAGE_DEFAULT: Final = 1_000_000
"""librdkafka's default."""
_FRAME: Final = 512
"""librdkafka requires `receive.message.max.bytes` to exceed the size of an answer by this."""


def profile_settings(profile: FetchProfile, given: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults of a consumer whose query sets `given`. librdkafka refuses an answer size
    below the largest message or above the largest size it may receive."""
    least = int(given.get(_MESSAGE_BYTES, _MESSAGE_DEFAULT))
    answer = max(RESPONSE_BYTES, least)
    if RECEIVE_BYTES in given:
        # If it is too small for a message, librdkafka's refusal names it only if the answer size is
        # not too small as well.
        answer = max(least, min(answer, int(given[RECEIVE_BYTES]) - _FRAME))
    found = {**PROFILES[profile], _RESPONSE: str(answer)}
    return {name: value for name, value in found.items() if name not in given}


def choose_profile(
    ranges: Iterable[PartitionRange],
    record_bytes: Mapping[StreamName, float],
    given: Collection[str] = (),
) -> FetchProfile:
    """Return the kind of consumer for these ranges. `record_bytes` is the recent average size of
    the records of each topic that was read before; `given` are the properties that the query
    sets."""
    if FETCH_BYTES in given:
        return FetchProfile.BULK
    largest = max(
        (
            (one.end - one.start) * record_bytes.get(one.ssp.stream, DEFAULT_RECORD_BYTES)
            for one in ranges
        ),
        default=0,
    )
    return FetchProfile.SMALL if largest <= SMALL_RANGE_BYTES else FetchProfile.BULK


# --- Pool -----------------------------------------------------------------------------------------

IDLE_TIMEOUT_S: Final = 300.0
"""Consumers idle for longer are closed when the next one is acquired or released."""

MAX_IDLE: Final = 8
"""The maximum number of idle consumers: a process runs tasks of several queries, one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerKey:
    """The properties of a consumer: consumers of equal keys are interchangeable."""

    client: ClientProperties
    group_id: str
    profile: FetchProfile = FetchProfile.BULK


def consumer_settings(key: ConsumerKey) -> dict[str, str]:
    """Return librdkafka's settings of a consumer in addition to the properties of its client."""
    given = key.client.config()
    return {**profile_settings(key.profile, given), GROUP_ID: key.group_id}


def open_consumer(key: ConsumerKey) -> PartitionConsumer:
    """Create a consumer, which connects later. Raises the errors of `create_client`."""
    native = load()
    if isinstance(native, Library):
        return NativeConsumer(native, key.client, consumer_settings(key))
    return ConfluentConsumer(key.client, consumer_settings(key))


SLOW_READS: Final = "records are read by confluent-kafka's consumer, which takes twice as long"


def slow_reads() -> str | None:
    """Return the reason for which this process reads by confluent-kafka's consumer; None if it
    reads librdkafka's memory, in half the time."""
    found = load()
    return found if isinstance(found, str) else None


def check_consumers(
    client: ClientProperties,
    group_id: str,
    *,
    create: Callable[[ConsumerKey], PartitionConsumer] = open_consumer,
) -> None:
    """Create and close every kind of consumer that tasks use, so that a configuration that
    librdkafka refuses is an error on the driver, before anything is read. A warning is logged if
    they are the slow ones. Raises the errors of `create_client`."""
    reason = slow_reads()
    if reason is not None:
        _log.warning("%s: %s", SLOW_READS, reason)
    for profile in FetchProfile:
        group = client.config().get(GROUP_ID, group_id)
        create(ConsumerKey(client=client, group_id=group, profile=profile)).close()


TopicIds = Mapping[StreamName, TopicId]
"""The ids of topics, without the topics whose id is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _IdleConsumer:
    """An idle consumer, the time of its release, and the topics it has read."""

    key: ConsumerKey
    idle_since_s: float
    consumer: PartitionConsumer
    topics: TopicIds

    def is_outdated_for(self, topics: TopicIds) -> bool:
        """Return whether it has read a topic of the same name and another id."""
        return any(self.topics.get(name, topics[name]) != topics[name] for name in topics)


@dataclass(slots=True)
class ConsumerPool:
    """Idle consumers, ordered by the time of their release.

    `record_bytes` is the recent average size of the records of each topic, in this process."""

    create: Callable[[ConsumerKey], PartitionConsumer] = open_consumer
    monotonic: Callable[[], float] = time.monotonic
    record_bytes: dict[StreamName, float] = field(default_factory=dict)
    _idle: list[_IdleConsumer] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _process: int = field(default_factory=os.getpid)

    @contextmanager
    def acquire(self, key: ConsumerKey, topics: TopicIds) -> Iterator[PartitionConsumer]:
        """Provide a consumer of `topics` to this thread: an idle one, or else a new one. After an
        error it is closed, since its state is unknown."""
        idle_one = self._take_idle(key, topics)
        consumer = self.create(key) if idle_one is None else idle_one.consumer
        process = os.getpid()
        try:
            yield consumer
            consumer.assign({})
        except BaseException:
            if os.getpid() == process:
                consumer.close()
            raise
        known = {} if idle_one is None else idle_one.topics
        self._release(key, consumer, {**known, **topics})

    def close(self) -> None:
        """Close all idle consumers."""
        self._drop_inherited()
        with self._lock:
            idle, self._idle = self._idle, []
        for one in idle:
            one.consumer.close()

    def _take_idle(self, key: ConsumerKey, topics: TopicIds) -> _IdleConsumer | None:
        self._drop_inherited()
        self._close_expired()
        with self._lock:
            alike = [one for one in self._idle if one.key == key]
            outdated = [one for one in alike if one.is_outdated_for(topics)]
            idle_one = next((one for one in reversed(alike) if one not in outdated), None)
            gone = {*outdated, idle_one}
            self._idle = [one for one in self._idle if one not in gone]
        for one in outdated:
            one.consumer.close()
        return idle_one

    def _release(self, key: ConsumerKey, consumer: PartitionConsumer, topics: TopicIds) -> None:
        released = _IdleConsumer(
            key=key, idle_since_s=self.monotonic(), consumer=consumer, topics=topics
        )
        with self._lock:
            self._idle.append(released)
        self._close_expired()

    def _close_expired(self) -> None:
        now = self.monotonic()
        with self._lock:
            young = [one for one in self._idle if now - one.idle_since_s <= IDLE_TIMEOUT_S]
            stay = young[-MAX_IDLE:]
            gone = [one for one in self._idle if one not in stay]
            self._idle = stay
        for one in gone:
            one.consumer.close()

    def _drop_inherited(self) -> None:
        if os.getpid() != self._process:
            # References are kept forever, so that no consumer is destroyed: their threads run in
            # the parent process.
            for one in self._idle:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(one.consumer))
            self._idle = []
            self._lock = threading.Lock()
            self._process = os.getpid()


PROCESS_POOL: Final = ConsumerPool()

atexit.register(PROCESS_POOL.close)
