"""`KafkaService` over confluent-kafka's AdminClient.

Retries have two levels, as with the Java client in Spark. One attempt lasts `request.timeout.ms`
(30 s, as there): within it, a request that no broker answers is sent again by a new client, and
only partitions with a transient error are requested again. There are `fetchOffset.numRetries`
attempts. Before any broker has answered there is only one: wrong options are then more likely than
unavailable brokers.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import IsolationLevel as SdkIsolationLevel
from confluent_kafka.admin import OffsetSpec as SdkOffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from spark_ssp.common.errors import ServiceUnavailableError, SspError
from spark_ssp.common.times import seconds_text
from spark_ssp.grouping.identifiers import EpochMillis, StreamName, SystemStreamPartition
from spark_ssp.kafka_source.client.admin_connection import (
    NO_RESPONSE,
    AdminClient,
    AdminConnection,
    run_in_thread,
)
from spark_ssp.kafka_source.client.api import OffsetSpec, TimedOffset, TopicDescription
from spark_ssp.kafka_source.client.client_config import secrets_of
from spark_ssp.kafka_source.client.error_translation import (
    ErrorKind,
    describe_error,
    error_kind,
    is_transient,
    kafka_error,
    to_error,
)
from spark_ssp.kafka_source.client.retry import (
    BatchRequest,
    NoResponseError,
    Retrier,
    RetriesExhaustedError,
    RetryPolicy,
    SendLimits,
)
from spark_ssp.kafka_source.model.topic import (
    Assign,
    AtTime,
    IsolationLevel,
    LogicalOffset,
    Selection,
    Subscribe,
    SubscribePattern,
    TopicId,
    kafka_name,
)
from spark_ssp.kafka_source.options.client_properties import BOOTSTRAP_SERVERS, ClientProperties
from spark_ssp.kafka_source.options.values import KafkaOptions

K = TypeVar("K")
V = TypeVar("V")

_REQUEST_TIMEOUT: Final = "socket.timeout.ms"
_GRACE_S: Final = 1.0
"""The time for other brokers to answer after one has rejected the login."""
_STALE_LEADER_S: Final = 2.0
"""The time for which the client's leader of a partition may be outdated before the client is
replaced. librdkafka ignores a leader of an earlier epoch, and a topic that was created again starts
with the first epoch."""
_STALE_LEADER: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""All bits zero: brokers before 2.8 have no topic ids."""


class KafkaAdminClient:
    """`KafkaService` over an AdminClient. Thread-safe. `monotonic` and `sleep` are in seconds."""

    def __init__(
        self,
        connection: AdminConnection,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        policy: RetryPolicy | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._connection = connection
        self._isolation = SdkIsolationLevel[isolation.name]
        self._monotonic = monotonic
        self._retrier = Retrier(
            policy=policy or RetryPolicy(),
            monotonic=monotonic,
            sleep=sleep,
            secrets=secrets_of(connection.properties),
        )
        servers = connection.properties.config().get(BOOTSTRAP_SERVERS, "")
        self._subject = f"kafka.{BOOTSTRAP_SERVERS}={servers}"

    def retries(self) -> int:
        """Return the number of requests that were sent again because of a transient error."""
        return self._retrier.count.value

    # --- KafkaService -----------------------------------------------------------------------------

    def describe(self, selection: Selection) -> Mapping[StreamName, TopicDescription]:
        """Implement `KafkaService`."""
        match selection:
            case Subscribe(topics=topics):
                return _descriptions(self._describe(topics))
            case Assign(partitions=partitions):
                return _descriptions(self._describe({ssp.stream for ssp in partitions}))
            case SubscribePattern(pattern=pattern):
                described = self._describe(filter(re.compile(pattern).search, self._names()))
                return _descriptions(
                    {n: one for n, one in described.items() if not one.is_internal}
                )

    def list_offsets(
        self,
        partitions: Collection[SystemStreamPartition],
        point: OffsetSpec,
        *,
        uncommitted: bool = False,
    ) -> Mapping[SystemStreamPartition, int | None]:
        """Implement `KafkaService`."""
        level = SdkIsolationLevel.READ_UNCOMMITTED if uncommitted else self._isolation
        answers = self._list(partitions, _spec_of(point), level)
        return {ssp: None if one.offset < 0 else one.offset for ssp, one in answers.items()}

    def first_records(
        self, partitions: Collection[SystemStreamPartition], since_ms: EpochMillis
    ) -> Mapping[SystemStreamPartition, TimedOffset | None]:
        """Implement `KafkaService`."""
        answers = self._list(partitions, _spec_of(AtTime(time_ms=since_ms)), self._isolation)
        return {
            ssp: None
            if one.offset < 0
            else TimedOffset(offset=one.offset, time_ms=EpochMillis(one.timestamp))
            for ssp, one in answers.items()
        }

    def _list(
        self,
        partitions: Collection[SystemStreamPartition],
        spec: Any,
        isolation: SdkIsolationLevel,
    ) -> Mapping[SystemStreamPartition, Any]:
        renew_at = self._monotonic() + _STALE_LEADER_S

        def send(
            ssps: Sequence[SystemStreamPartition], limits: SendLimits
        ) -> Mapping[SystemStreamPartition, Any]:
            nonlocal renew_at
            client = self._connection.admin

            def ask(admin: AdminClient) -> Mapping[SystemStreamPartition, Future[Any]]:
                futures = admin.list_offsets(
                    {TopicPartition(ssp.stream, ssp.partition): spec for ssp in ssps},
                    isolation_level=isolation,
                    request_timeout=limits.timeout_s,
                )
                # In the order of the request.
                return dict(zip(ssps, futures.values(), strict=True))

            answers = self._collect(ask, limits)
            now = self._monotonic()
            if now >= renew_at and any(map(_is_stale_leader, answers.values())):
                self._connection.renew(client)
                renew_at = now + 10 * _STALE_LEADER_S
            return answers

        def exists(
            ssps: Collection[SystemStreamPartition], limits: SendLimits
        ) -> Collection[SystemStreamPartition]:
            try:
                topics = self._describe_once(sorted({ssp.stream for ssp in ssps}), limits)
            except NoResponseError:
                return ssps
            return [ssp for ssp in ssps if _may_have(topics[ssp.stream], ssp.partition)]

        return self._run(
            sorted(set(partitions)),
            BatchRequest(
                operation="ListOffsets",
                send=send,
                name_of=lambda ssp: f"partition {kafka_name(ssp)}",
                still_existing=exists,
            ),
        )

    # --- Topics -----------------------------------------------------------------------------------

    def _describe(self, topics: Iterable[str]) -> Mapping[str, Any]:
        return self._run(
            sorted(set(topics)),
            BatchRequest(
                operation="DescribeTopics",
                send=self._describe_once,
                name_of=lambda topic: f"topic {topic}",
            ),
        )

    def _describe_once(self, names: Sequence[str], limits: SendLimits) -> Mapping[str, Any]:
        topics = TopicCollection(list(names))
        return self._collect(
            lambda admin: admin.describe_topics(topics, request_timeout=limits.timeout_s), limits
        )

    def _names(self) -> list[str]:
        """Return the names of all topics that the user may describe."""

        def send(keys: Sequence[str], limits: SendLimits) -> Mapping[str, Any]:
            def ask(admin: AdminClient) -> Mapping[str, Future[Any]]:
                future = run_in_thread(lambda: admin.list_topics(timeout=limits.timeout_s))
                return dict.fromkeys(keys, future)

            return self._collect(ask, limits)

        answers: Mapping[str, Any] = self._run(
            ["topics"],
            BatchRequest(operation="Metadata", send=send, name_of=lambda _: "topics"),
        )
        return sorted(answers["topics"].topics)

    def create_topic(
        self,
        topic: StreamName,
        *,
        partitions: int,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> bool:
        """Create a topic, and return False if one of that name exists. The replication factor and
        the settings of `config` default to the brokers'.

        Metadata of a new topic reaches the brokers one after another. False may also mean that the
        answer to an earlier attempt was lost, or that a topic of that name is being deleted.
        """
        new = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=-1 if replication_factor is None else replication_factor,
            config=dict(config or {}),
        )

        def send(names: Sequence[str], limits: SendLimits) -> Mapping[str, Any]:
            seconds = limits.timeout_s
            answers: Mapping[str, Any] = self._collect(
                lambda admin: admin.create_topics(
                    [new], operation_timeout=seconds, request_timeout=seconds
                ),
                limits,
            )
            return {name: _is_new(answers[name]) for name in names}

        answers: Mapping[str, Any] = self._run(
            [topic],
            BatchRequest(operation="CreateTopics", send=send, name_of=lambda name: f"topic {name}"),
        )
        return bool(answers[topic])

    # --- Requests ---------------------------------------------------------------------------------

    def _run(self, wanted: Sequence[K], request: BatchRequest[K, V]) -> dict[K, V]:
        """Run a request with retries. Raises only errors of this project."""
        self._connection.check_process()
        retrier = self._retrier
        if not self._connection.has_responded:
            retrier = replace(retrier, policy=replace(retrier.policy, attempts=1))
        try:
            answers = retrier.run(wanted, request)
        except RetriesExhaustedError as exhausted:
            raise self._unavailable_error(request.operation, exhausted) from None
        self._connection.has_responded = True
        return answers

    def _collect(
        self, send: Callable[[AdminClient], Mapping[K, Future[V]]], limits: SendLimits
    ) -> Mapping[K, V | KafkaError]:
        """Send a request, and return an answer or an error for each key.

        Raises AccessError if brokers keep rejecting the login, and NoResponseError if no answer
        arrived in time. Once brokers have answered, a rejection reported before the call does not
        count: a later login may have succeeded, which librdkafka does not report. The client is
        replaced if any key has no answer.
        """
        connection = self._connection
        client = connection.admin
        begun = connection.errors.mark() if connection.has_responded else 0
        rejected_at: float | None = None

        def is_rejected() -> bool:
            nonlocal rejected_at
            rejection = connection.errors.access_error(begun)
            if rejection is None:
                return False
            now = self._monotonic()
            rejected_at = now if rejected_at is None else rejected_at
            if now - rejected_at >= _GRACE_S:
                raise self._access_error(rejection)
            return True

        futures = connection.request(
            send, limits, monotonic=self._monotonic, is_rejected=is_rejected
        )
        if futures is None:
            raise NoResponseError(KafkaError(KafkaError._TIMED_OUT))
        results: dict[K, V | KafkaError] = {}
        for key, future in futures.items():
            result = _result(future)
            results[key] = result
        faults = [one for one in results.values() if isinstance(one, KafkaError)]
        unanswered = [error for error in faults if error.code() < 0 and is_transient(error)]
        rejection = connection.errors.access_error(begun)
        if unanswered and rejection is not None:
            raise self._access_error(rejection)
        if any(error.code() in NO_RESPONSE for error in faults):
            connection.renew(client)
        answered_by_brokers = len(faults) < len(results) or any(
            error.code() > 0 for error in faults
        )
        if answered_by_brokers and not unanswered:
            connection.errors.clear()
        return results

    def _access_error(self, rejection: KafkaError) -> SspError:
        return to_error(rejection, subject=self._subject, secrets=self._retrier.secrets)

    def _unavailable_error(self, operation: str, exhausted: RetriesExhaustedError) -> SspError:
        timeout = seconds_text(self._retrier.policy.timeout_s)
        times = f", {exhausted.attempts} times" if exhausted.attempts > 1 else ""
        # Before the first answer there is only one attempt.
        is_retried = self._connection.has_responded
        attempts = ", fetchOffset.numRetries the number of attempts" if is_retried else ""
        reason = self._connection.errors.connection_error()
        if reason is not None:
            subject = self._subject
            why = f"{describe_error(reason, self._retrier.secrets)}, so there was no answer to "
            found = f"{why}{operation} in {timeout}{times}"
        else:
            # An error of librdkafka concerns all keys, one of a broker the key that it was returned
            # for.
            subject = self._subject if exhausted.error.code() < 0 else exhausted.subject
            why = describe_error(exhausted.error, self._retrier.secrets)
            found = f"{why} on {operation} for {timeout}{times}"
        return ServiceUnavailableError(
            subject,
            found=found,
            expected="an answer from the brokers",
            next_step="check kafka.bootstrap.servers, kafka.security.protocol and the network, or "
            "wait for the brokers; kafka.request.timeout.ms sets the timeout of an attempt"
            + attempts,
        )


def _result(future: Future[V]) -> V | KafkaError:
    error = future.exception()
    if error is None:
        result = future.result()
        # ListOffsets goes to each leader, and librdkafka 2.16 ignores the failure of one of these
        # requests: its partitions keep this offset, without an error. "None" is -1.
        if getattr(result, "offset", None) == OFFSET_INVALID:
            return KafkaError(KafkaError._TIMED_OUT)
        return result
    if isinstance(error, KafkaException):
        return kafka_error(error)
    raise error


def _is_new(answer: Any) -> bool | KafkaError:
    """Interpret an answer of CreateTopics: an existing topic is not an error."""
    if isinstance(answer, KafkaError):
        return False if answer.code() == KafkaError.TOPIC_ALREADY_EXISTS else answer
    return True


def _is_stale_leader(answer: Any) -> bool:
    return isinstance(answer, KafkaError) and answer.code() in _STALE_LEADER


def _may_have(topic: Any, partition: int) -> bool:
    if isinstance(topic, KafkaError):
        return error_kind(topic) is not ErrorKind.MISSING
    return partition < len(topic.partitions)


def _spec_of(point: OffsetSpec) -> Any:
    match point:
        case LogicalOffset.EARLIEST:
            return SdkOffsetSpec.earliest()  # type: ignore[no-untyped-call]
        case LogicalOffset.LATEST:
            return SdkOffsetSpec.latest()  # type: ignore[no-untyped-call]
        case AtTime(time_ms=time_ms):
            return SdkOffsetSpec.for_timestamp(time_ms)


def _descriptions(topics: Mapping[str, Any]) -> Mapping[StreamName, TopicDescription]:
    return {
        StreamName(name): TopicDescription(
            topic_id=_id_of(topic), partition_count=len(topic.partitions)
        )
        for name, topic in topics.items()
    }


def _id_of(topic: Any) -> TopicId | None:
    text = str(topic.topic_id)
    # As in Kafka's tools.
    return None if text == _NO_ID else TopicId(text.replace("+", "-").replace("/", "_"))


# --- One connection for each process -------------------------------------------------------------

_connections: weakref.WeakValueDictionary[tuple[int, ClientProperties], AdminConnection] = (
    weakref.WeakValueDictionary()
)
_connecting = threading.Lock()


def connect(options: KafkaOptions) -> KafkaAdminClient:
    """Return the cluster of these options. Thread-safe; no request is sent yet.

    All services of a process with the same client properties share one connection, which is closed
    with the last of them. A connection from before a fork is not used after it. Raises
    InvalidOptionsError if librdkafka rejects the properties.
    """
    return KafkaAdminClient(
        _connection(options.client),
        isolation=options.isolation_level,
        policy=RetryPolicy(
            attempts=max(1, options.fetch_offset_attempts),
            interval_s=options.fetch_offset_retry_interval_ms / 1000,
            timeout_s=_timeout_of(options.client),
        ),
    )


def _timeout_of(properties: ClientProperties) -> float:
    given = properties.config().get(_REQUEST_TIMEOUT)
    return RetryPolicy().timeout_s if given is None else int(given) / 1000


def _connection(properties: ClientProperties) -> AdminConnection:
    key = (os.getpid(), properties)
    with _connecting:
        connection = _connections.get(key)
        if connection is None:
            connection = _connections[key] = AdminConnection(properties)
        return connection


def disconnect_kafka() -> None:
    """Close the connections of this process, for tests and for an orderly exit."""
    with _connecting:
        mine = [key for key in _connections if key[0] == os.getpid()]
        closing = [_connections.pop(key) for key in mine]
    for connection in closing:
        connection.close()


def _after_fork() -> None:
    # Another thread may have held the lock during the fork; nothing would release it in the child.
    global _connecting
    _connecting = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(disconnect_kafka)
