"""Runs the probes of one query's shards, and keeps what the next ones need: when a shard may be
probed, where its last probe left off, and the failures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from spark_ssp.common.errors import ServiceUnavailableError, SspError, StreamNotFoundError
from spark_ssp.common.options.values import is_loopback
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.client.api import (
    InvalidPositionError,
    KinesisService,
    ShardNotFoundError,
    ThrottledError,
    UnreachableError,
)
from spark_ssp.kinesis_source.model.shard import (
    EpochMillis,
    Shard,
    StreamDescription,
    StreamRef,
)
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.kinesis_source.planning.data_loss import (
    warn_unreadable_shard,
)
from spark_ssp.kinesis_source.planning.shard_discovery import CONFIRMATIONS, ShardDiscovery
from spark_ssp.kinesis_source.probing.probe_protocol import (
    PositionAnswer,
    ProbeResult,
    ShardCursor,
)
from spark_ssp.kinesis_source.probing.probe_rate_limiter import (
    ProbeRateLimiter,
    StarvedShards,
)
from spark_ssp.kinesis_source.probing.probe_runner import Probe, ProbeRunner, R, Steps
from spark_ssp.kinesis_source.probing.shard_lag import ProbeHistory

_log = logging.getLogger(__name__)

_NOTHING_KNOWN: Final = ShardCursor()
END_TRIES: Final = 60
"""The probes of a shard whose end ListShards does not confirm."""
END_PERIOD_S: Final = 1.0
"""The pause between them."""


class ShardProber:
    """The probes of one query. Not thread-safe; the probes themselves run in parallel.
    `monotonic` and `sleep` are in seconds."""

    def __init__(
        self,
        options: KinesisOptions,
        service: KinesisService,
        discovery: ShardDiscovery,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._service = service
        self._discovery = discovery
        self._sleep = sleep
        self._fail = options.fail_on_data_loss
        self._streams: dict[StreamName, StreamRef] = {ref.name: ref for ref in options.streams}
        self._runner = ProbeRunner(service)
        self.limiter = ProbeRateLimiter(
            period_ms=options.min_fetch_period_ms,
            enforced=not is_loopback(options.connection.endpoint_url),
            monotonic=monotonic,
            sleep=sleep,
        )
        self.starved = StarvedShards(
            enabled=options.fan_out is not None, monotonic=monotonic, sleep=sleep
        )
        self.history = ProbeHistory()
        self.cursors: dict[ShardKey, ShardCursor] = {}
        self.rejected: set[ShardKey] = set()
        """Shards whose position the service refused: it is verified again before the next batch."""
        self._refusals: dict[ShardKey, int] = {}
        """Shards that are listed but that the service refuses to open, with the number of refusals
        in a row. After `CONFIRMATIONS` that is an error, or tolerated."""

    def close(self) -> None:
        """Stop the threads."""
        self._runner.close()

    def retain(self, keys: Collection[ShardKey]) -> None:
        """Drop the state of shards not among `keys`."""
        for table in (self.cursors, self._refusals):
            for key in table.keys() - keys:
                del table[key]
        for part in (self.history, self.limiter, self.starved):
            part.retain(keys)

    def service_time(self) -> EpochMillis:
        """Return the service's time."""
        return self._service.service_time()

    def description(self, key: ShardKey) -> StreamDescription:
        """Return the description of the shard's stream."""
        return self._discovery.description(self._streams[key.stream])

    def kept_ms(self, key: ShardKey, now: EpochMillis | None = None) -> int:
        """Return the age up to which the shard's records are surely kept: the retention, or less
        for a while after it was raised."""
        return self._discovery.kept_ms(self._streams[key.stream], now)

    def listing(self, key: ShardKey) -> Mapping[ShardId, Shard]:
        """Return the listing of the shard's stream."""
        return self._discovery.shards(self._streams[key.stream])

    def lists_parent(self, key: ShardKey) -> bool:
        """Return whether the service lists a parent of the shard."""
        return self._discovery.lists_parent(self._streams[key.stream], key.shard)

    def open_at(self, key: ShardKey) -> EpochMillis | None:
        """Return the last time at which the service listed the shard as open."""
        return self._discovery.open_at(self._streams[key.stream], key.shard)

    def cursor(self, key: ShardKey) -> ShardCursor:
        """Return where the last probe of the shard left off."""
        return self.cursors.get(key, _NOTHING_KNOWN)

    def is_unreadable(self, key: ShardKey) -> bool:
        """Return whether the service lists the shard but refuses again and again to open it."""
        return self._refusals.get(key, 0) >= CONFIRMATIONS

    # --- Running ----------------------------------------------------------------------------------

    def run(self, probes: Mapping[ShardKey, Steps[R]], *, patient: bool) -> dict[ShardKey, R]:
        """Run probes or checks; shards without a result, as throttled ones, are left out.
        `patient`: repeat calls that fail."""
        outcomes = self._runner.run_all(
            probes,
            self._streams,
            patient=lambda key: patient or self.limiter.is_retry_due(key),
        )
        results: dict[ShardKey, R] = {}
        missing: dict[ShardKey, SspError] = {}
        for key, outcome in outcomes.items():
            match outcome:
                case UnreachableError():
                    self.limiter.record_failure(key)
                    self.starved.record_probe(key, throttled=False, failed=True)
                    self.history.record_failure(key, self.service_time(), outcome)
                case ThrottledError():
                    self.limiter.record_throttle(key)
                    self.starved.record_probe(key, throttled=True, failed=True)
                    self.history.record_failure(key, self.service_time(), outcome)
                case ShardNotFoundError() | InvalidPositionError() | StreamNotFoundError():
                    self.limiter.record_throttle(key)
                    self.starved.record_probe(key, throttled=False, failed=True)
                    self.history.record_failure(key, self.service_time(), outcome)
                    missing[key] = outcome
                    self.cursors.pop(key, None)  # its iterator may belong to a deleted stream
                case Exception():
                    raise outcome
                case _:
                    results[key] = outcome
                    self.history.record_success(key)
                    self.starved.record_probe(key, throttled=outcome.throttled, failed=False)
                    self._refusals.pop(key, None)
        self._tolerate_missing(missing)
        return results

    def _tolerate_missing(self, missing: Mapping[ShardKey, SspError]) -> None:
        """Leave out shards that the service could not find; raise the error of a listed one that
        it refuses again and again, since the listing may be behind."""
        created = {key.stream: self.description(key).created for key in missing}
        listed = self.still_listed(missing.keys(), created)
        for key, error in missing.items():
            if isinstance(error, InvalidPositionError):
                self.rejected.add(key)
            elif key not in listed:
                self._refusals.pop(key, None)
                _log.warning("%s can no longer be read: %s", key, error)
            else:
                self._refusals[key] = self._refusals.get(key, 0) + 1
                if self._refusals[key] != CONFIRMATIONS:
                    continue
                if self._fail:
                    raise error
                warn_unreadable_shard(key, error)

    def run_repeated(
        self,
        probes: Mapping[ShardKey, Steps[R]],
        repeated: Callable[[AbstractSet[ShardKey]], Collection[ShardKey]],
    ) -> dict[ShardKey, R]:
        """Run probes or checks, those that were throttled again, if they are among the `repeated`
        ones of the shards without a result."""
        results = self.run(probes, patient=False)
        self.starved.repeat(
            repeated(probes.keys() - results.keys()),
            results,
            lambda keys: self.run({key: probes[key] for key in keys}, patient=False),
        )
        return results

    def run_checks(
        self,
        checks: Mapping[ShardKey, Steps[PositionAnswer]],
        *,
        patient: bool,
        repeated: Callable[[AbstractSet[ShardKey]], Collection[ShardKey]],
    ) -> dict[ShardKey, PositionAnswer]:
        """Run checks of positions, as `run` or `run_repeated`, and count their calls."""
        answers = self.run(checks, patient=True) if patient else self.run_repeated(checks, repeated)
        for key, answer in answers.items():
            self.limiter.record_check(key, calls=answer.fetches)
        return answers

    def find_latest(self, probes: Mapping[ShardKey, Probe]) -> dict[ShardKey, ProbeResult]:
        """Run the probes with retries. A shard whose end, or existence, is not confirmed is probed
        again; raises ServiceUnavailableError if it never can."""
        results = self.run(probes, patient=True)
        tries = 1
        while doubtful := [*self._refused(probes), *self.unconfirmed_ends(results)]:
            if tries == END_TRIES:
                raise ServiceUnavailableError(
                    f"shard {doubtful[0]}",
                    found=f"GetRecords without a NextShardIterator, {tries} times, for a shard "
                    "without an EndingSequenceNumber",
                    expected="an iterator, until ListShards returns the shard as closed",
                    next_step="run the query again; if the error stays, check endpointUrl and the "
                    "service's health",
                )
            self._sleep(END_PERIOD_S)
            tries += 1
            results |= self.run({key: probes[key] for key in doubtful}, patient=True)
        return results

    def _refused(self, probes: Collection[ShardKey]) -> list[ShardKey]:
        """Return the shards to ask for again that the service refused."""
        return [key for key in probes if key in self._refusals and not self.is_unreadable(key)]

    # --- Doubts -----------------------------------------------------------------------------------

    def unconfirmed_ends(self, results: Mapping[ShardKey, ProbeResult]) -> list[ShardKey]:
        """Return the shards that ended by a page, but that the service lists as open. A single
        answer without an iterator would end the shard for good."""
        ended = [key for key, result in results.items() if result.closed]
        doubtful = [key for key in ended if _is_open(key, self.listing(key))]
        unconfirmed: list[ShardKey] = []
        for name in sorted({key.stream for key in doubtful}):
            ref = self._streams[name]
            if self._discovery.frozen:
                fresh = self._discovery.list_now(ref)
            else:
                self._discovery.refresh(ref)
                fresh = self._discovery.shards(ref)
            unconfirmed += [
                key
                for key in doubtful
                if key.stream == name and (fresh is None or _is_open(key, fresh))
            ]
        return unconfirmed

    def still_listed(
        self, keys: Collection[ShardKey], created: Mapping[StreamName, EpochMillis]
    ) -> set[ShardKey]:
        """Refresh the streams of shards that the service refused; return those shards that are
        listed, in streams `created` at the same time as before."""
        listed: set[ShardKey] = set()
        for name in sorted({key.stream for key in keys}):
            ref = self._streams[name]
            self._discovery.refresh(ref, doubt=True)
            if self._discovery.description(ref).created != created[name]:
                continue
            listing = self._discovery.shards(ref)
            listed |= {key for key in keys if key.stream == name and key.shard in listing}
        return listed


def _is_open(key: ShardKey, listing: Mapping[ShardId, Shard]) -> bool:
    return key.shard in listing and not listing[key.shard].closed
