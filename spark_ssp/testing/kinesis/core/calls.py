"""Counts the requests of clients, so that tests can check budgets."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

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

    Requests count equally if they were answered, refused or dropped; `refused` counts the errors
    by code.
    """

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
