"""Retries a request about many keys until every key has an answer, or the attempts are exhausted.

One attempt lasts the request timeout: within it, only the keys with a transient error are sent
again, after short pauses. The number of attempts is limited, and each failed one is logged.

librdkafka sends a request to one broker (the controller it knows, a leader, a coordinator) and
waits for that broker alone, so one send is short: the next one, by a new client, asks another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from confluent_kafka import KafkaError

from spark_ssp.common.times import seconds_text
from spark_ssp.kafka_source.client.error_translation import (
    ErrorKind,
    describe_error,
    error_kind,
    to_error,
)

_log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The number of attempts, 1 or more, the timeout of each, and the interval between two."""

    attempts: int = 3
    interval_s: float = 1.0
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLimits:
    """The longest waits of one send, in seconds."""

    timeout_s: float
    after_failed_connect_s: float
    """From a failed connection to a broker on: while a request waits for a broker that refuses
    connections, librdkafka 2.16 connects to it thousands of times a second."""


_SHORT_S: Final = 5.0
_REFUSED_S: Final = 0.5


def send_limits(elapsed_s: float, timeout_s: float) -> SendLimits:
    """Return the limits of a send that begins `elapsed_s` after the begin of an attempt of
    `timeout_s`.

    The first third of an attempt has short sends, the second longer ones. A send in the last third
    has the rest, so that a request which brokers take long to answer succeeds as well.
    """
    rest = max(0.0, timeout_s - elapsed_s)
    if elapsed_s >= timeout_s * 2 / 3:
        return SendLimits(timeout_s=rest, after_failed_connect_s=rest)
    short = _SHORT_S if elapsed_s < timeout_s / 3 else 2 * _SHORT_S
    return SendLimits(timeout_s=min(short, rest), after_failed_connect_s=min(_REFUSED_S, rest))


def _none_existing(_: Collection[K], __: SendLimits) -> Collection[K]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest(Generic[K, V]):
    """A request about many keys at once."""

    operation: str
    """The name of the request in Kafka's protocol."""
    send: Callable[[Sequence[K], SendLimits], Mapping[K, V | KafkaError]]
    """Sends the request for these keys. Returns an answer or error for each; raises NoResponseError
    if there is none for any."""
    name_of: Callable[[K], str]
    """Returns the name of a key for messages."""
    still_existing: Callable[[Collection[K], SendLimits], Collection[K]] = field(
        default=_none_existing
    )
    """Given keys reported missing, returns those that exist or may exist."""


class NoResponseError(Exception):
    """Raised if a request had no answer for any key; carries the error."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.name())
        self.error = error


class RetriesExhaustedError(Exception):
    """Raised if keys have no answer after the last attempt; carries their names, the last error and
    the number of attempts."""

    def __init__(self, subject: str, error: KafkaError, attempts: int) -> None:
        super().__init__(subject)
        self.subject = subject
        self.error = error
        self.attempts = attempts


@dataclass(slots=True)
class RetryCount:
    """The number of requests sent again. Not exact if several threads use a `Retrier`."""

    value: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrier:
    """Sends a `BatchRequest` by a `RetryPolicy`. `monotonic` and `sleep` are in seconds; `secrets`
    are masked in messages."""

    policy: RetryPolicy
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    secrets: tuple[str, ...] = ()
    count: RetryCount = field(default_factory=RetryCount)

    def run(self, wanted: Sequence[K], request: BatchRequest[K, V]) -> dict[K, V]:
        """Return the answers of the keys of `wanted` that exist, in that order. Raises `to_error`
        of permanent errors, RetriesExhaustedError, and the errors of `request.send`."""
        policy = self.policy
        found: dict[K, V] = {}
        left = list(wanted)
        for attempt in range(1, policy.attempts + 1):
            left, error = self._attempt(left, found, request)
            if not left:
                break
            if attempt == policy.attempts:
                raise RetriesExhaustedError(_some(left, request), error, attempt)
            _log.warning(
                "%s on %s (%s) for %s: retrying in %s after attempt %d of %d",
                describe_error(error, self.secrets),
                request.operation,
                _some(left, request),
                seconds_text(policy.timeout_s),
                seconds_text(policy.interval_s),
                attempt,
                policy.attempts,
            )
            self.sleep(policy.interval_s)
        return {key: found[key] for key in wanted if key in found}

    def _attempt(
        self, wanted: Sequence[K], found: dict[K, V], request: BatchRequest[K, V]
    ) -> tuple[list[K], KafkaError]:
        """Send the request until every key has an answer or the attempt times out. Return the keys
        without one, and the last error."""
        error = KafkaError(KafkaError._TIMED_OUT)
        begun = self.monotonic()
        deadline = begun + self.policy.timeout_s
        pause = _FIRST_PAUSE_S
        left = list(wanted)
        while left and (now := self.monotonic()) < deadline:
            limits = send_limits(now - begun, self.policy.timeout_s)
            try:
                answers = request.send(left, limits)
            except NoResponseError as nothing:
                error = nothing.error
            else:
                limits = send_limits(self.monotonic() - begun, self.policy.timeout_s)
                faults = self._sort(answers, found, request, limits)
                left = [key for key in left if key in faults]
                error = next((faults[key] for key in left), error)
            if left:
                self.count.value += 1
                self.sleep(min(pause, max(0.0, deadline - self.monotonic())))
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        return left, error

    def _sort(
        self,
        answers: Mapping[K, V | KafkaError],
        found: dict[K, V],
        request: BatchRequest[K, V],
        limits: SendLimits,
    ) -> dict[K, KafkaError]:
        """Add the answers to `found`, and return the keys to retry, with their errors."""
        again: dict[K, KafkaError] = {}
        missing: dict[K, KafkaError] = {}
        for key, answer in answers.items():
            if not isinstance(answer, KafkaError):
                found[key] = answer
                continue
            kind = error_kind(answer)
            if kind is ErrorKind.TRANSIENT:
                again[key] = answer
            elif kind is ErrorKind.MISSING:
                missing[key] = answer
            else:
                raise to_error(answer, subject=request.name_of(key), secrets=self.secrets)
        # Metadata reaches the brokers one after another, and librdkafka caches partition leaders.
        existing = request.still_existing(missing, limits) if missing else ()
        return again | {key: _of_existing(missing[key]) for key in existing}


def _of_existing(error: KafkaError) -> KafkaError:
    """Return the error of a key that exists although it was reported missing. librdkafka reports
    "no such entry" if no partition of a request has a leader."""
    is_leaderless = error.code() == KafkaError._NOENT
    return KafkaError(KafkaError.LEADER_NOT_AVAILABLE) if is_leaderless else error


def _some(keys: Sequence[K], request: BatchRequest[K, V]) -> str:
    more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return request.name_of(keys[0]) + more
