"""Asking brokers about many things at once until each has an answer: what to ask again, how long.

One attempt lasts a request's time-out: in it, whatever answered with a fault that passes by itself
is asked again, alone, after short pauses. Attempts are bounded in number and told in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from confluent_kafka import KafkaError

from kafka_source.client.error_translation import ErrorKind, describe_error, error_kind, to_error

_log = logging.getLogger(f"spark_ssp.{__name__}")

K = TypeVar("K")
V = TypeVar("V")

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """`attempts`: how often, at least once. Seconds: `timeout` for each, `interval` between."""

    attempts: int = 3
    interval_s: float = 1.0
    timeout_s: float = 30.0


def _none_existing(_: Collection[K], __: float) -> Collection[K]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest(Generic[K, V]):
    """What is asked of many."""

    operation: str
    """The request's name in Kafka's protocol."""
    send: Callable[[Sequence[K], float], Mapping[K, V | KafkaError]]
    """Takes who is to answer, and seconds: an answer or a fault of each. NoAnswerError: of none."""
    name_of: Callable[[K], str]
    """For messages."""
    still_existing: Callable[[Collection[K], float], Collection[K]] = field(default=_none_existing)
    """Who of those that are said to be missing is there all the same, or may be; in so many
    seconds."""


class NoResponseError(Exception):
    """A request brought no answers at all; its fault."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.name())
        self.error = error


class RetriesExhaustedError(Exception):
    """Somebody has not answered: who, the last fault, and how often it was tried."""

    def __init__(self, subject: str, error: KafkaError, attempts: int) -> None:
        super().__init__(subject)
        self.subject = subject
        self.error = error
        self.attempts = attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrier:
    """`monotonic` and `sleep` are in seconds; `secrets` never show."""

    policy: RetryPolicy
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    secrets: tuple[str, ...] = ()

    def run(self, wanted: Sequence[K], request: BatchRequest[K, V]) -> dict[K, V]:
        """By whom of `wanted` exists, in that order. Raises what `to_error` says of faults that do
        not pass, GivenUpError, and what `question.ask` raises itself."""
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
                "%s on %s (%s) for %g s: trying again in %g s, that was %d of %d times",
                describe_error(error, self.secrets),
                request.operation,
                _some(left, request),
                policy.timeout_s,
                policy.interval_s,
                attempt,
                policy.attempts,
            )
            self.sleep(policy.interval_s)
        return {key: found[key] for key in wanted if key in found}

    def _attempt(
        self, wanted: Sequence[K], found: dict[K, V], request: BatchRequest[K, V]
    ) -> tuple[list[K], KafkaError]:
        """Ask until all have answered or the time is up: who has not, and why not."""
        error = KafkaError(KafkaError._TIMED_OUT)
        deadline = self.monotonic() + self.policy.timeout_s
        pause = _FIRST_PAUSE_S
        left = list(wanted)
        while left and (seconds := deadline - self.monotonic()) > 0:
            try:
                answers = request.send(left, seconds)
            except NoResponseError as nothing:
                error = nothing.error
            else:
                faults = self._sort(answers, found, request, deadline - self.monotonic())
                left = [key for key in left if key in faults]
                error = next((faults[key] for key in left), error)
            if left:
                self.sleep(min(pause, max(0.0, deadline - self.monotonic())))
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        return left, error

    def _sort(
        self,
        answers: Mapping[K, V | KafkaError],
        found: dict[K, V],
        request: BatchRequest[K, V],
        seconds: float,
    ) -> dict[K, KafkaError]:
        """Who is to be asked again, each with its fault."""
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
        # Brokers hear of a change one after another, and librdkafka remembers who leads.
        there = request.still_existing(missing, seconds) if missing else ()
        return again | {key: missing[key] for key in there}


def _some(keys: Sequence[K], request: BatchRequest[K, V]) -> str:
    more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return request.name_of(keys[0]) + more
