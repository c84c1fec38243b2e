"""Repeats the calls on one shard while the service throttles or fails.

Throttling means that other consumers of the shard, or of the KMS key of the stream, use up the
service's limits. It ends when they read less, and failing the task would only repeat the same
calls. So calls are repeated without a limit, as by the Kinesis Client Library, with occasional
warnings. Any other fault may be permanent and is retried up to `retry.maxAttempts` times in a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from kinesis_source.client.api import ThrottledError, UnreachableError
from kinesis_source.options.values import ConnectionOptions
from kinesis_source.reading.clock import Timing
from kinesis_source.reading.fetch_rate import backoff_millis
from ssp_common.errors import ServiceUnavailableError
from task_grouping.identifiers import ShardKey

_log = logging.getLogger(f"spark_ssp.{__name__}")

T = TypeVar("T")

LASTING_ATTEMPTS: Final = 3
"""Failed attempts in a row before a warning."""

THROTTLED_WARNING_SECONDS: Final = 10.0
"""Longer than a full answer to another reader can block a shard."""

THROTTLED_WARNING_PERIOD: Final = 60.0


class ShardPatience:
    """The retries of one shard's range. `pause` waits, and raises when the task is stopped."""

    def __init__(
        self,
        shard: ShardKey,
        connection: ConnectionOptions,
        *,
        timing: Timing,
        pause: Callable[[float], None],
        throttled: Callable[[], None],
    ) -> None:
        """`throttled` is called for each throttled answer."""
        self._shard = shard
        self._attempts = connection.retry_max_attempts
        self._longest = connection.retry_max_backoff_ms
        self._timing = timing
        self._pause = pause
        self._throttled = throttled
        self._failed = 0
        self._unreached = 0
        self._throttled_since: float | None = None
        self._warned: float | None = None
        self._noted = False

    def answered(self) -> None:
        """Note an answer without a fault: further failures are counted from one."""
        self._failed = self._unreached = 0
        self._throttled_since = self._warned = None

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, which is repeated until it has one.

        Raises ServiceUnavailableError after `retry.maxAttempts` faults in a row that are not
        throttling. Other errors of `call` are raised at once.
        """
        while True:
            self._pause(0)
            try:
                result = call()
            except UnreachableError as error:
                self._failed += 1
                self._unreached += 1
                if self._unreached >= self._attempts:
                    raise self._given_up(error) from None
                wait = self._backoff()
                self._note_fault(error, wait)
            except ThrottledError as error:
                self._failed += 1
                self._unreached = 0
                self._throttled()
                wait = self._backoff()
                self._note_throttling(error, wait)
            else:
                self.answered()
                return result
            self._pause(wait)

    def _backoff(self) -> float:
        draw = self._timing.random()
        return backoff_millis(self._failed, longest=self._longest, draw=draw) / 1000

    def _note_fault(self, error: UnreachableError, wait: float) -> None:
        """Log a short fault at INFO once for a range, a lasting one as a warning."""
        level = self._first_level()
        if self._unreached == LASTING_ATTEMPTS:
            level = logging.WARNING
        _log.log(
            level,
            "shard %s: %s; trying again in %.1f s (attempt %d of %d)",
            self._shard,
            error.found,
            wait,
            self._unreached + 1,
            self._attempts,
        )

    def _note_throttling(self, error: ThrottledError, wait: float) -> None:
        now = self._timing.monotonic()
        if self._throttled_since is None:
            self._throttled_since = now
        lasting = now - self._throttled_since
        due = self._warned is None or now - self._warned >= THROTTLED_WARNING_PERIOD
        if lasting < THROTTLED_WARNING_SECONDS or not due:
            _log.log(
                self._first_level(),
                "shard %s: %s; trying again in %.1f s",
                self._shard,
                error.found,
                wait,
            )
            return
        self._warned = now
        _log.warning(
            "shard %s has been throttled for %.0f s (%s); its records are late, not lost, and the "
            "call is repeated until the service answers. Read the stream with fewer consumers, use "
            "a longer trigger interval or add shards; for KMS errors raise the request quota of "
            "the key's account",
            self._shard,
            lasting,
            error.found,
        )

    def _first_level(self) -> int:
        level = logging.DEBUG if self._noted else logging.INFO
        self._noted = True
        return level

    def _given_up(self, error: UnreachableError) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            f"shard {self._shard}",
            found=f"{error.found}, {self._attempts} times in a row",
            expected="an answer of the service",
            next_step="restart the query, which repeats the batch; if it fails again, check "
            "endpointUrl, region, the network, the machine's clock and the service's health, or "
            "raise retry.maxAttempts and retry.maxBackoff",
        )
