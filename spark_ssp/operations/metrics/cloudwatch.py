"""Metrics for CloudWatch: lines of JSON for an agent or a log driver that sends them to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TextIO

from spark_ssp.operations.metrics.catalogue import Metric
from spark_ssp.operations.metrics.embedded_metrics import documents
from spark_ssp.operations.metrics.output import invalid_argument
from spark_ssp.operations.model.snapshot import QuerySnapshot

PERIOD_S: Final = 10.0
"""The shortest time between the lines of two triggers of a query: the KCL's default buffer time."""


class CloudWatchOutput:
    """Writes documents in the Embedded Metric Format, a line each. Used under a lock.

    `monotonic` is in seconds.
    """

    def __init__(
        self,
        target: TextIO | Path,
        *,
        namespace: str,
        series: int,
        monotonic: Callable[[], float],
    ) -> None:
        """`target`: an open stream, which is not closed, or a file, which is appended to. Raises
        InvalidOptionsError if the file cannot be opened."""
        self._namespace = namespace
        self._series = series
        self._monotonic = monotonic
        self._is_own = isinstance(target, Path)
        self._target = _opened(target) if isinstance(target, Path) else target
        self._last: dict[str, tuple[float, Mapping[Metric, int]]] = {}
        """By run of a query: the time of its last lines, and its counts then."""

    def publish(self, snapshot: QuerySnapshot, counts: Mapping[Metric, int]) -> None:
        """Write the lines of a trigger, if the period has passed."""
        now = self._monotonic()
        last, before = self._last.get(snapshot.run_id, (None, {}))
        if last is not None and now - last < PERIOD_S:
            return
        self._last = {run: one for run, one in self._last.items() if now - one[0] < 60 * PERIOD_S}
        self._last[snapshot.run_id] = (now, counts)
        increases = {metric: max(0, n - before.get(metric, 0)) for metric, n in counts.items()}
        found = documents(snapshot, increases, namespace=self._namespace, series=self._series)
        self._target.write("".join(f"{json.dumps(one)}\n" for one in found))
        self._target.flush()

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._is_own:
            self._target.close()


def _opened(path: Path) -> TextIO:
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise invalid_argument(
            "cloudwatch",
            found=f"the file {path}, which cannot be opened ({error.strerror})",
            expected="a file that can be appended to",
            next_step="choose another path, or create its folder",
        ) from error
