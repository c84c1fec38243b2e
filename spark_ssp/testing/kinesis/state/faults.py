"""The log of the requests of clients, so that tests can check budgets, and the faults that a test
injects into them.

    faults.add(Throttle(), operation="GetRecords", shard="shardId-000000000000", count=3)
    faults.add(LostReply(), operation="PutRecords", nth=2)
    faults.add(Timeout(delay_ms=500), when=lambda call: call.at_ms > deadline)
    faults.add(FailSubscription(after_events=2), operation="SubscribeToShard", shard=shard_id)

A fault is due in the `nth` call that matches it and in the `count - 1` matching calls after that
(`count=None`: in all). A call of an operation that it cannot affect does not match. If several are
due in one call, the first added of those that prevent an answer applies; the others take effect as
well if possible.

Faults of single subscriptions are injected into calls of SubscribeToShard, which succeed.
`after_events` is the number of events, empty ones included, that the subscription sends before the
fault takes effect. A takeover and the end after five minutes come before any fault.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

# --- Calls ----------------------------------------------------------------------------------------


_KEPT = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. `stream`, `shard` and `consumer` (an ARN) are None if the request does not name
    them."""

    operation: str
    stream: str | None
    shard: str | None
    at_ms: int
    consumer: str | None = None


class CallLog:
    """Counts every request of clients (direct calls of a test on the state are not counted).
    Requests count equally if they were answered, refused or dropped; `refused` counts the errors by
    code: one for a refused request, also for one that could not be read, which is no call, and one
    for each record that PutRecords refuses."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str | None, str | None]] = Counter()
        self._recent: deque[Call] = deque(maxlen=_KEPT)
        self.refused: Counter[str] = Counter()

    def add(self, call: Call) -> None:
        self._counts[call.operation, call.stream, call.shard] += 1
        self._recent.append(call)

    def count(
        self, operation: str | None = None, *, stream: str | None = None, shard: str | None = None
    ) -> int:
        """Return the number of matching requests; an argument not given matches all."""
        return sum(
            times
            for (op, of_stream, of_shard), times in list(self._counts.items())
            if (operation is None or op == operation)
            and (stream is None or of_stream == stream)
            and (shard is None or of_shard == shard)
        )

    def by_operation(self) -> dict[str, int]:
        """Return the number of requests by operation, sorted by name."""
        totals: Counter[str] = Counter()
        for (operation, _, _), times in list(self._counts.items()):
            totals[operation] += times
        return dict(sorted(totals.items()))

    def by_shard(self, operation: str, *, stream: str | None = None) -> dict[str, int]:
        """Return the number of requests of one operation by shard id, sorted."""
        totals: Counter[str] = Counter()
        for (op, of_stream, shard), times in list(self._counts.items()):
            if op == operation and shard is not None and stream in (None, of_stream):
                totals[shard] += times
        return dict(sorted(totals.items()))

    def recent(self, operation: str | None = None) -> list[Call]:
        """Return the latest requests (up to 200,000), oldest first."""
        return [c for c in list(self._recent) if operation is None or c.operation == operation]

    def peak_per_second(self, operation: str, *, shard: str | None = None) -> int:
        """Return the most requests within any second of the service's clock; 0 without requests."""
        times = (c.at_ms for c in self.recent(operation) if shard is None or c.shard == shard)
        return _peak(times)

    def reset(self) -> None:
        """Forget everything counted so far."""
        self._counts.clear()
        self._recent.clear()
        self.refused.clear()


def _peak(times: Iterable[int]) -> int:
    window: deque[int] = deque()
    peak = 0
    for at_ms in sorted(times):
        window.append(at_ms)
        while window[0] <= at_ms - 1000:
            window.popleft()
        peak = max(peak, len(window))
    return peak


# --- Faults of subscriptions ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FailSubscription:
    """The subscription ends with an error event, for example ResourceInUseException,
    InternalFailureException or KMSThrottlingException."""

    code: str = "InternalFailureException"
    message: str = "Injected fault."
    after_events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceSubscription:
    """The connection stays open without events for `duration_ms`; None: until it ends."""

    duration_ms: int | None = None
    after_events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSubscription:
    """The connection is dropped in the middle of an event."""

    after_events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSubscription:
    """The response ends as after five minutes; in a closed shard without ChildShards."""

    after_events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyEvents:
    """The next `count` events have no records, even if some are left; the continuation moves."""

    count: int = 1
    after_events: int = 0


SubscriptionFault = (
    FailSubscription | SilenceSubscription | CutSubscription | EndSubscription | EmptyEvents
)


# --- Faults of calls ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The request is not carried out and answered with this error."""

    code: str
    message: str = "Injected fault."
    status: int = 400


@dataclass(frozen=True, slots=True)
class Throttle:
    """ProvisionedThroughputExceededException, or LimitExceededException if the operation is limited
    by stream or account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalFailure:
    """InternalFailure with `status`: 500, or 503 as ServiceUnavailable."""

    status: int = 500


@dataclass(frozen=True, slots=True)
class AccessDenied:
    """AccessDeniedException."""


@dataclass(frozen=True, slots=True)
class ExpiredIterator:
    """GetRecords answers ExpiredIteratorException, however young the iterator is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """The request is not carried out; after `delay_ms` the connection is dropped without an
    answer. Choose more than the client's read timeout to have it time out."""

    delay_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class DropConnection:
    """The request is not carried out; the connection is dropped at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostReply:
    """The request is carried out, then the connection is dropped without an answer."""

    delay_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimRecords:
    """The shard that the request names loses its records before the request is carried out: those
    before `before_sequence_number`, or that arrived before `before_ms`, or all."""

    before_sequence_number: str | None = None
    before_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyPage:
    """GetRecords returns no records, a new iterator at the same position, and at least this lag."""

    millis_behind_latest: int = 1000


@dataclass(frozen=True, slots=True)
class LateShardEnd:
    """The last records of a closed shard come with an iterator, as if more could follow; only the
    empty page after them has none. AWS may answer either way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayVisibility:
    """The records put by the request can be read only after `delay_ms`; until then the shard
    looks as if it ended before them. Records put after them are delayed too."""

    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftArrival:
    """The records put by the request carry an arrival time of `shift_ms` (negative: earlier)
    from the clock; the service does not promise that arrival times increase."""

    shift_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectRecords:
    """PutRecords answers 200, but each `every`-th record of the request (1: all of them) is not
    stored and has the error `code`."""

    every: int = 1
    code: str = "ProvisionedThroughputExceededException"


Fault = (
    Refusal
    | Throttle
    | InternalFailure
    | AccessDenied
    | ExpiredIterator
    | Timeout
    | DropConnection
    | LostReply
    | TrimRecords
    | EmptyPage
    | LateShardEnd
    | DelayVisibility
    | ShiftArrival
    | RejectRecords
    | SubscriptionFault
)

_SUBSCRIPTIONS: Final = frozenset({"SubscribeToShard"})
_READS: Final = frozenset({"GetRecords"})
_PUTS: Final = frozenset({"PutRecord", "PutRecords"})
_AFFECTED: Final[Mapping[type[Fault], frozenset[str]]] = {
    FailSubscription: _SUBSCRIPTIONS,
    SilenceSubscription: _SUBSCRIPTIONS,
    CutSubscription: _SUBSCRIPTIONS,
    EndSubscription: _SUBSCRIPTIONS,
    EmptyEvents: _SUBSCRIPTIONS,
    ExpiredIterator: _READS,
    EmptyPage: _READS,
    LateShardEnd: _READS,
    TrimRecords: frozenset(
        {"GetRecords", "GetShardIterator", "MergeShards", "SplitShard", "SubscribeToShard"}
    ),
    DelayVisibility: _PUTS,
    ShiftArrival: _PUTS,
    RejectRecords: frozenset({"PutRecords"}),
}
"""The operations in which a fault can take effect; those not listed do in all."""


def _can_affect(fault: Fault, call: Call) -> bool:
    operations = _AFFECTED.get(type(fault))
    if operations is not None and call.operation not in operations:
        return False
    return not isinstance(fault, TrimRecords) or None not in (call.stream, call.shard)


@dataclass(slots=True, kw_only=True)
class Injection:
    """A fault with the calls in which it is due. `hits` counts the calls in which it was."""

    fault: Fault
    operation: str | None
    stream: str | None
    shard: str | None
    nth: int
    count: int | None
    when: Callable[[Call], bool] | None
    hits: int = 0
    _matched: int = field(default=0)

    @property
    def exhausted(self) -> bool:
        """True if the fault is due in no later call."""
        return self.count is not None and self._matched >= self.nth - 1 + self.count

    def due(self, call: Call) -> bool:
        """Return whether the fault is due in `call`; count the call if it matches."""
        if (
            self.exhausted
            or self.operation not in (None, call.operation)
            or self.stream not in (None, call.stream)
            or self.shard not in (None, call.shard)
            or not _can_affect(self.fault, call)
            or (self.when is not None and not self.when(call))
        ):
            return False
        self._matched += 1
        if self._matched < self.nth:
            return False
        self.hits += 1
        return True


def by_chance(probability: float, *, seed: int) -> Callable[[Call], bool]:
    """Return a condition for `Faults.add(when=...)` that is true with `probability`. It is a
    function of the seed, the operation, the stream, the shard and how many matching calls of these
    came before, so that the order of calls to different shards has no influence."""
    counts: Counter[tuple[str, str | None, str | None]] = Counter()

    def chosen(call: Call) -> bool:
        key = (call.operation, call.stream, call.shard)
        counts[key] += 1
        digest = hashlib.blake2b(repr((seed, key, counts[key])).encode(), digest_size=8).digest()
        return int.from_bytes(digest) < probability * 2**64

    return chosen


class Faults:
    """The injected faults of a service with these `operations`. Thread-safe."""

    def __init__(self, operations: Collection[str]) -> None:
        self._operations = operations
        self._lock = threading.Lock()
        self._injections: list[Injection] = []

    def add(
        self,
        fault: Fault,
        *,
        operation: str | None = None,
        stream: str | None = None,
        shard: str | None = None,
        nth: int = 1,
        count: int | None = 1,
        when: Callable[[Call], bool] | None = None,
    ) -> Injection:
        """Inject `fault` into the calls that match; an argument not given matches every call. It
        takes effect from the `nth` matching call on, for `count` of them; None: for all. Raises
        ValueError for an operation that the service lacks or that the fault cannot affect."""
        possible = _AFFECTED.get(type(fault), self._operations)
        if operation is not None and operation not in possible:
            raise ValueError(
                f"found {operation!r} as the operation of {type(fault).__name__}; expected one of "
                f"{', '.join(sorted(possible))}"
            )
        injection = Injection(
            fault=fault,
            operation=operation,
            stream=stream,
            shard=shard,
            nth=nth,
            count=count,
            when=when,
        )
        with self._lock:
            self._injections.append(injection)
        return injection

    def remove(self, injection: Injection) -> None:
        """Remove an injected fault, if it still exists."""
        with self._lock:
            self._injections = [i for i in self._injections if i is not injection]

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._injections.clear()

    def take(self, call: Call) -> list[Fault]:
        """Return the faults due in `call`, oldest first. Called once per request."""
        with self._lock:
            if not self._injections:
                return []
            due = [i.fault for i in self._injections if i.due(call)]
            self._injections = [i for i in self._injections if not i.exhausted]
            return due

    def __iter__(self) -> Iterator[Injection]:
        """Iterate over the faults that may still be due."""
        with self._lock:
            return iter(list(self._injections))
