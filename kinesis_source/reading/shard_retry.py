"""Repeats the calls on one shard while the service throttles or fails.

Throttling means that other consumers of the shard, or of the KMS key of the stream, use up the
service's limits. It ends when they read less, and failing the task would only repeat the same
calls. So calls are repeated without a limit, as by the Kinesis Client Library, with occasional
warnings. Any other fault may be permanent and is retried up to `retry.maxAttempts` times in a row.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.common.logs import Detail
from spark_ssp.common.times import seconds_text
from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.client.api import ThrottledError, UnreachableError
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from spark_ssp.kinesis_source.reading.fetch_pacing import backoff_ms

_log = logging.getLogger(__name__)

T = TypeVar("T")

WARNING_ATTEMPTS: Final = 3
"""Failed attempts in a row before a warning."""

THROTTLED_WARNING_AFTER_S: Final = 10.0
"""Longer than a full answer to another reader can block a shard."""

THROTTLED_WARNING_PERIOD_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """`monotonic` is in seconds; `wait` returns after that many seconds or once the event is set;
    `random` is uniform in [0, 1)."""

    monotonic: Callable[[], float] = time.monotonic
    wait: Callable[[threading.Event, float], object] = threading.Event.wait
    random: Callable[[], float] = random.random


SYSTEM_CLOCK = Clock()


class ShardRetry:
    """The retries of one shard's range. `pause` waits, and raises when the task is stopped."""

    def __init__(
        self,
        shard: ShardKey,
        connection: ConnectionOptions,
        *,
        clock: Clock,
        pause: Callable[[float], None],
        on_throttled: Callable[[], None],
    ) -> None:
        """`on_throttled` is called for each throttled answer."""
        self._shard = shard
        self._max_attempts = connection.retry_max_attempts
        self._max_backoff_ms = connection.retry_max_backoff_ms
        self._clock = clock
        self._pause = pause
        self._on_throttled = on_throttled
        self._failed = 0
        self._unreachable = 0
        self._throttled_since: float | None = None
        self._last_warning: float | None = None
        self._is_logged = False

    def reset(self) -> None:
        """Note an answer without a fault: further failures are counted from one."""
        self._failed = self._unreachable = 0
        self._throttled_since = self._last_warning = None

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, which is repeated until it has one. Raises
        ServiceUnavailableError after `retry.maxAttempts` faults in a row that are not throttling.
        Other errors of `call` are raised at once."""
        while True:
            self._pause(0)
            try:
                result = call()
            except UnreachableError as error:
                self._failed += 1
                self._unreachable += 1
                if self._unreachable >= self._max_attempts:
                    raise self._retries_exhausted(error) from None
                wait = self._backoff()
                self._log_fault(error, wait)
            except ThrottledError as error:
                self._failed += 1
                self._unreachable = 0
                self._on_throttled()
                wait = self._backoff()
                self._log_throttling(error, wait)
            else:
                self.reset()
                return result
            self._pause(wait)

    def _backoff(self) -> float:
        draw = self._clock.random()
        return backoff_ms(self._failed, longest=self._max_backoff_ms, draw=draw) / 1000

    def _log_fault(self, error: UnreachableError, wait: float) -> None:
        """Log a short fault at INFO once for a range, a lasting one as a warning."""
        level = self._first_level()
        if self._unreachable == WARNING_ATTEMPTS:
            level = logging.WARNING
        _log.log(
            level,
            "shard %s: %s; trying again in %s (attempt %d of %d)",
            Detail(self._shard),
            Detail(error.found),
            seconds_text(wait),
            self._unreachable + 1,
            self._max_attempts,
        )

    def _log_throttling(self, error: ThrottledError, wait: float) -> None:
        now = self._clock.monotonic()
        if self._throttled_since is None:
            self._throttled_since = now
        lasted_s = now - self._throttled_since
        due = self._last_warning is None or now - self._last_warning >= THROTTLED_WARNING_PERIOD_S
        if lasted_s < THROTTLED_WARNING_AFTER_S or not due:
            _log.log(
                self._first_level(),
                "shard %s: %s; trying again in %s",
                Detail(self._shard),
                Detail(error.found),
                seconds_text(wait),
            )
            return
        self._last_warning = now
        _log.warning(
            "shard %s has been throttled for %s (%s); its records are late, not lost, and the "
            "call is repeated until the service answers. Read the stream with fewer consumers, use "
            "a longer trigger interval or add shards; for KMS errors raise the request quota of "
            "the key's account",
            Detail(self._shard),
            seconds_text(lasted_s),
            Detail(error.found),
        )

    def _first_level(self) -> int:
        level = logging.DEBUG if self._is_logged else logging.INFO
        self._is_logged = True
        return level

    def _retries_exhausted(self, error: UnreachableError) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            f"shard {self._shard}",
            found=f"{error.found}, {self._max_attempts} times in a row",
            expected="an answer of the service",
            next_step="restart the query, which repeats the batch; if it fails again, check "
            "endpointUrl, region, the network, the machine's clock and the service's health, or "
            "raise retry.maxAttempts and retry.maxBackoff",
        )
