"""Commits the positions of a query to a consumer group, for tools that show lag.

A thread sends one request at a time, and only the newest positions: a query waits only at the end
of `availableNow`. A failure is logged and never raised. Positions are committed again once a minute
while triggers run, so that they do not expire and a deleted group appears again.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from spark_ssp.common.errors import (
    AccessError,
    InvalidRequestError,
    ServiceUnavailableError,
    SspError,
)
from spark_ssp.common.times import seconds_text
from spark_ssp.grouping.identifiers import SystemStreamPartition
from spark_ssp.kafka_source.client.admin_connection import ClientErrors, run_in_thread
from spark_ssp.kafka_source.client.client_config import create_group_client, secrets_of
from spark_ssp.kafka_source.client.error_translation import (
    ErrorKind,
    describe_error,
    error_kind,
    is_transient,
    kafka_error,
    to_error,
)
from spark_ssp.kafka_source.client.retry import send_limits
from spark_ssp.kafka_source.options.client_properties import ClientProperties

_log = logging.getLogger(__name__)

Positions = Mapping[SystemStreamPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPace:
    """Times in seconds."""

    interval_s: float = 1.0
    """Between two commits."""
    pause_s: float = 10.0
    """After a failure."""
    repeat_s: float = 60.0
    """Until the same positions are committed again."""
    warn_s: float = 600.0
    """Between two warnings of the same failure."""
    timeout_s: float = 10.0
    """Of a request."""
    idle_s: float = 30.0
    """Without positions, after which the connection is closed."""
    flush_s: float = 3.0
    """The longest that the process waits for the last commit after SIGTERM."""


class GroupCommitter:
    """Commits the newest positions it was given. Its methods are called by one thread."""

    def __init__(
        self,
        group: str,
        store: GroupOffsets,
        *,
        pace: CommitPace | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._store = store
        self._pace = pace or CommitPace()
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._pending: Positions | None = None
        self._newest: Positions | None = None
        self._confirmed: Positions | None = None
        """The positions that the group has."""
        self._is_settled = True
        """False while an earlier commit may take the place of the confirmed positions."""
        self._given_up: Positions | None = None
        """The positions that `flush` has given up."""
        self._repeat_at = 0.0
        self._due_at = 0.0
        self._flush_by: float | None = None
        """The deadline of `flush` while it waits for the newest positions."""
        self._closing = False
        self._thread: threading.Thread | None = None
        self._failures = 0
        """Since the last successful commit."""
        self._failure = ""
        """The reason of the last one."""
        self._warned: tuple[str, float] = ("", 0.0)
        """The kind of the last warning and its time."""

    def submit(self, positions: Positions) -> None:
        """Commit these positions soon. Returns at once. The first call opens the connection, even
        without positions: a query may end right after its first batch."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="kafka-group-committer", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # too many threads
                self._warn("thread", str(error), self._monotonic())
                return
            self._thread = thread
        if not positions:
            return
        with self._changed:
            now = self._monotonic()
            is_known = positions is self._newest or positions == self._newest
            if is_known and now < self._repeat_at:
                return
            self._newest = self._pending = positions
            self._repeat_at = now + self._pace.repeat_s
            self._changed.notify_all()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the newest positions are committed, an attempt has failed or the time has
        passed, by default a request's timeout. Warn unless they are committed, once for the same
        positions."""
        reason = self._flushed(self._pace.timeout_s if timeout_s is None else timeout_s)
        if reason is not None:
            _log.warning(
                "the last offsets may be missing in consumer group %s: %s", self._group, reason
            )

    def _flushed(self, timeout_s: float) -> str | None:
        """Return why the newest positions may be missing in the group."""
        if self._thread is None:
            return None
        with self._changed:
            is_confirmed = self._newest is self._confirmed and self._is_settled
            if is_confirmed or self._newest is self._given_up:
                return None
            self._flush_by = self._monotonic() + timeout_s
            self._changed.notify_all()
            is_attempted = self._changed.wait_for(lambda: self._flush_by is None, timeout_s)
            self._flush_by = None
            if self._newest is self._confirmed and self._is_settled:
                return None
            self._given_up = self._newest
            if self._newest is self._confirmed:
                return None
            return self._failure if is_attempted else f"no answer within {seconds_text(timeout_s)}"

    def close(self) -> None:
        """Flush for a limited time, and end the thread."""
        if self._thread is None:
            return
        end = self._monotonic() + self._pace.flush_s
        self.flush(self._pace.flush_s)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(max(0.0, end - self._monotonic()))

    def flush_on_termination(self) -> None:
        """Flush when this process gets SIGTERM, then end it. Spark ends the process of a stream
        reader so, without calling `stop`, and closes its standard error first. Without effect if
        SIGTERM is handled already."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return

        def flush(number: int, _: object) -> None:
            signal.signal(number, signal.SIG_DFL)
            # No line is logged: the interrupted code may hold a lock of the log's filters.
            self._flushed(self._pace.flush_s)
            os.kill(os.getpid(), number)

        signal.signal(signal.SIGTERM, flush)

    # --- In the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        self._guarded(self._store.connect)
        while (positions := self._next()) is not None:
            if positions:
                self._commit(positions)
            else:
                # A client that nobody polls would keep its errors and lines for ever.
                self._guarded(self._store.close)
        self._guarded(self._store.close)

    def _guarded(self, call: Callable[[], None]) -> None:
        """Call without a commit. What fails there fails again in the next one, which reports it."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  (lag for tools must not end the thread)
            _log.debug("consumer group %s: %s", self._group, type(error).__name__)

    def _next(self) -> Positions | None:
        """Wait until a commit is due, and return its positions; none if there is nothing to commit
        for some time, None at the end."""
        with self._changed:
            while not self._closing:
                wait_s = self._due_at - self._monotonic()
                is_urgent = self._flush_by is not None and self._pending is not self._confirmed
                if self._pending is not None and (wait_s <= 0 or is_urgent):
                    break
                if self._pending is not None:
                    self._changed.wait(wait_s)
                elif not self._changed.wait(self._pace.idle_s):
                    return {}
            else:
                return None
            positions, self._pending = self._pending, None
            return positions

    def _commit(self, positions: Positions) -> None:
        failure, kind, is_settled = None, "", True
        try:
            is_settled = self._store.commit(positions, self._timeout_s())
        except SspError as error:
            failure, kind = str(error), error.kind
        except Exception as error:  # noqa: BLE001  (lag for tools must not end a query)
            failure = kind = type(error).__name__
        now = self._monotonic()
        with self._changed:
            is_newest = positions is self._newest
            is_flushed = is_newest and self._flush_by is not None
            self._due_at = now + (self._pace.interval_s if failure is None else self._pace.pause_s)
            if failure is None:
                self._confirmed, self._is_settled = positions, is_settled
            if self._pending is None and (failure is not None or not is_settled):
                self._pending = positions
            self._failure = failure or ""
            if is_newest and is_settled:
                self._flush_by = None
                self._changed.notify_all()
        if failure is not None:
            self._failures += 1
            if not is_flushed:  # else `flush` warns
                self._warn(kind, failure, now)
        elif self._failures:
            _log.info("offsets are committed to consumer group %s again", self._group)
            self._failures, self._warned = 0, ("", 0.0)

    def _timeout_s(self) -> float:
        with self._changed:
            if self._flush_by is None:
                return self._pace.timeout_s
            # Its failure is known before `flush` gives up.
            left = self._flush_by - self._monotonic() - _PAUSE_S
            return min(self._pace.timeout_s, max(0.1, left))

    def _warn(self, kind: str, failure: str, now: float) -> None:
        # The text names the broker, which differs from one failure to the next.
        warned, at = self._warned
        if kind == warned and now - at < self._pace.warn_s:
            return
        self._warned = (kind, now)
        _log.warning(
            "offsets are not committed to consumer group %s, and the query continues "
            "(failures: %d): %s",
            self._group,
            self._failures,
            failure,
        )


# --- The group ------------------------------------------------------------------------------------

_POLL_S: Final = 0.02
_LATE_S: Final = 120.0
"""Longer than a request waits for a broker that is frozen (`socket.timeout.ms`, and the search of
another coordinator)."""
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
    """Commits offsets to one group. Not thread-safe.

    By a consumer that is no member and reads nothing. An admin client makes the same request, but
    may end the process when its connection to a coordinator fails (librdkafka issue 4605). The
    consumer belongs to the group, and is replaced after a request without an answer: it waits for a
    coordinator that is frozen, while others know the next one. See docs/design/kafka-client.md.
    """

    def __init__(self, properties: ClientProperties, group: str) -> None:
        self._properties = properties
        self._group = group
        self._link: _Link | None = None
        self._replaced: list[tuple[Future[None], float]] = []
        """The links that are not closed yet, whose last commit the group may still take, and the
        times from which on that is not expected any more."""

    def connect(self) -> None:
        """Begin to search for the group's coordinator, so that the next commit only sends."""
        self._opened()

    def commit(self, positions: Positions, timeout_s: float) -> bool:
        """Commit the offset of the next record to read, by partition. Deleted topics and partitions
        are left out. Return whether they stay: an earlier commit without an answer may still take
        their place, so repeat this one later. Raises a subclass of SspError, for a single partition
        too; the others may have been committed."""
        places = [TopicPartition(ssp.stream, ssp.partition, at) for ssp, at in positions.items()]
        begun = time.monotonic()
        while True:
            link = self._opened()
            now = time.monotonic()
            limits = send_limits(now - begun, timeout_s)
            self._replaced = [
                (closed, until)
                for closed, until in self._replaced
                if not closed.done() and now < until
            ]
            error = link.commit(places, limits.timeout_s)
            if error is None:
                return not self._replaced
            # Its commit may still be answered, which would be taken for the answer to another.
            self.close()
            is_over = begun + timeout_s - time.monotonic() <= _PAUSE_S
            if is_over or not is_transient(error):
                self._fail(error, link.errors)
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            self._replaced.append((self._link.close(), time.monotonic() + _LATE_S))
            self._link = None

    def _opened(self) -> _Link:
        if self._link is None:
            self._link = _Link(self._properties, self._group)
        return self._link

    def _fail(self, error: KafkaError, errors: ClientErrors) -> NoReturn:
        secrets = secrets_of(self._properties)
        reason = None
        if is_transient(error):
            # The reason for a request without an answer.
            reason = errors.access_error() or errors.connection_error()
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


class _Answers:
    """The answers to a client. They do not refer to it: a closed client in a cycle keeps its login
    until the garbage collector runs."""

    def __init__(self) -> None:
        self.errors = ClientErrors()
        self.received: list[KafkaError | None] = []
        """Those to the present request."""

    def on_commit(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        """Take the answer to a commit."""
        self.received.append(_error_of(error, places))

    def on_error(self, error: KafkaError) -> None:
        """Take an error of the client."""
        self.errors.record(error)
        if error_kind(error) is ErrorKind.GROUP_ACCESS:
            self.received.append(error)  # the commit only waits for a coordinator


class _Link:
    """A consumer in a group, which belongs to its process."""

    def __init__(self, properties: ClientProperties, group: str) -> None:
        self._answers = _Answers()
        self._consumer: Any = create_group_client(
            properties, group, on_error=self._answers.on_error, on_commit=self._answers.on_commit
        )
        _links.add(self)

    @property
    def errors(self) -> ClientErrors:
        """The errors of the client."""
        return self._answers.errors

    def commit(self, places: Sequence[TopicPartition], timeout_s: float) -> KafkaError | None:
        """Return the error of a request, or the first one of a partition that exists."""
        answers = self._answers.received
        answers.clear()
        until = time.monotonic() + timeout_s
        try:
            self._consumer.commit(offsets=list(places), asynchronous=True)
            # In this thread: a client that another one polls may not return from `commit`.
            while not answers and (left := until - time.monotonic()) > 0:
                message = self._consumer.poll(min(left, _POLL_S))
                if message is not None and message.error() is not None:
                    self._answers.on_error(message.error())
        except KafkaException as exception:
            return kafka_error(exception)
        return answers[0] if answers else KafkaError(KafkaError._TIMED_OUT)

    def close(self) -> Future[None]:
        """Close the consumer, which may take long while a broker is away. After it, none of its
        commits is sent."""
        return run_in_thread(self._consumer.close)


_links: Final = weakref.WeakSet[_Link]()
_inherited: Final[list[_Link]] = []
"""Those of the process that this one was forked from: to destroy them would wait for threads that
do not exist here."""
os.register_at_fork(after_in_child=lambda: _inherited.extend(_links))


def _error_of(error: KafkaError | None, places: Sequence[TopicPartition]) -> KafkaError | None:
    """Return the error of a request, or the first one of a partition that exists."""
    faults = (fault for fault in (error, *(one.error for one in places)) if fault is not None)
    return next((one for one in faults if error_kind(one) is not ErrorKind.MISSING), None)
