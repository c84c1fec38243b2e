"""Offsets committed to a consumer group, for tools that show lag.

One OffsetCommit request without a member goes to the group's coordinator. The connection belongs to
the group and is replaced after a request without an answer: librdkafka 2.16 does not search for
another coordinator then, and later requests would time out too. See docs/design/group-offsets.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from spark_ssp.common.errors import (
    AccessError,
    InvalidRequestError,
    ServiceUnavailableError,
    SspError,
)
from spark_ssp.grouping.identifiers import SystemStreamPartition
from spark_ssp.kafka_source.client.admin_connection import AdminConnection
from spark_ssp.kafka_source.client.client_config import secrets_of
from spark_ssp.kafka_source.client.error_translation import (
    ErrorKind,
    describe_error,
    error_kind,
    is_transient,
    kafka_error,
    to_error,
)
from spark_ssp.kafka_source.client.retry import send_limits
from spark_ssp.kafka_source.properties.translation import ClientProperties

_PAUSE_S: Final = 0.5
"""Between two requests without an answer, or with a transient error."""
_HAS_MEMBERS: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.UNKNOWN_MEMBER_ID,
    }
)


class GroupOffsets:
    """Commits offsets to one group. Not thread-safe."""

    def __init__(self, properties: ClientProperties, group: str) -> None:
        self._properties = properties
        self._group = group
        self._connection: AdminConnection | None = None

    def connect(self, timeout_s: float) -> None:
        """Find the group's coordinator and connect to it, so that the next commit only sends.
        Failures are left to the commit."""

        with suppress(KafkaException, SspError):
            self._request(
                lambda seconds, admin: admin.describe_consumer_groups(
                    [self._group], request_timeout=seconds
                ),
                timeout_s,
            )

    def commit(self, positions: Mapping[SystemStreamPartition, int], timeout_s: float) -> None:
        """Commit the offset of the next record to read, by partition. Deleted topics and partitions
        are left out. Raises a subclass of SspError, for a single partition too; the others may have
        been committed."""
        request = ConsumerGroupTopicPartitions(
            self._group,
            [TopicPartition(ssp.stream, ssp.partition, at) for ssp, at in positions.items()],
        )

        error = self._request(
            lambda seconds, admin: admin.alter_consumer_group_offsets(
                [request], request_timeout=seconds
            ),
            timeout_s,
        )
        if error is not None:
            self._fail(error)

    def _request(
        self, send: Callable[[float, AdminClient], Mapping[str, Future[Any]]], timeout_s: float
    ) -> KafkaError | None:
        """Send a request until it has no transient error, for `timeout_s` at most, each time by a
        new client. Return the last error."""
        begun = time.monotonic()
        while True:
            limits = send_limits(time.monotonic() - begun, timeout_s)
            connection = self._opened()
            client = connection.admin
            answers = connection.request(partial(send, limits.timeout_s), limits)
            error: KafkaError | None = KafkaError(KafkaError._TIMED_OUT)
            if answers is not None:
                (future,) = answers.values()
                error = _error_of(future)
            is_over = begun + timeout_s - time.monotonic() <= _PAUSE_S
            if error is None or is_over or not is_transient(error):
                return error
            connection.renew(client)
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> AdminConnection:
        if self._connection is None:
            self._connection = AdminConnection(self._properties)
        return self._connection

    def _fail(self, error: KafkaError) -> NoReturn:
        secrets = secrets_of(self._properties)
        reason = None
        if self._connection is not None and error.code() == KafkaError._TIMED_OUT:
            # The reason for a request without an answer.
            errors = self._connection.errors
            reason = errors.access_error() or errors.connection_error()
        if is_transient(error):
            self.close()
        subject = f"consumer group {self._group}"
        found = describe_error(reason or error, secrets)
        if error.code() in _HAS_MEMBERS:
            raise InvalidRequestError(
                subject,
                found=f"{found}: the group has active members",
                expected="a group without members, since brokers accept only the commits of members"
                " otherwise",
                next_step="give commitOffsetsToGroup a group that no consumer uses",
            )
        if error_kind(error) is ErrorKind.GROUP_ACCESS:
            raise AccessError(
                subject,
                found=found,
                expected="permission to commit offsets",
                next_step="allow the user to read with this group (ACLs)",
            )
        if is_transient(error) and (reason is None or is_transient(reason)):
            raise ServiceUnavailableError(
                subject,
                found=found,
                expected="an answer from the group's coordinator",
                next_step="wait for the brokers",
            )
        raise to_error(reason or error, subject=subject, secrets=secrets)


def _error_of(future: Future[Any]) -> KafkaError | None:
    """Return the error of a request, or the first error of a partition; None if all partitions that
    exist were committed."""
    exception = future.exception()
    if isinstance(exception, KafkaException):
        return kafka_error(exception)
    partitions = getattr(future.result(), "topic_partitions", ())
    faults = (one.error for one in partitions if one.error is not None)
    return next((one for one in faults if error_kind(one) is not ErrorKind.MISSING), None)
