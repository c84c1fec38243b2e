"""Passes snapshots of queries to the outputs of metrics."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ssp.operations.metrics.output import Output
from spark_ssp.operations.metrics.query_states import QueryStates
from spark_ssp.operations.model.snapshot import QuerySnapshot
from spark_ssp.operations.progress.failures import FailureGuard


class MetricsPublisher:
    """The metrics of a session's queries. A failing output does not affect the others."""

    def __init__(self, states: QueryStates, outputs: Mapping[str, Output]) -> None:
        """`outputs`: by the name for warnings."""
        self._states = states
        self._outputs = outputs
        self._guard = FailureGuard()

    def publish(self, snapshot: QuerySnapshot) -> None:
        """Publish a query's state after a trigger."""
        counts = self._states.update(snapshot)
        for name, output in self._outputs.items():
            self._guard.run(
                f"metrics for {name}",
                lambda: output.publish(snapshot, counts),  # noqa: B023
            )

    def end(self, run_id: str, *, failed: bool) -> None:
        """Remove a query."""
        self._states.remove(run_id, failed=failed)

    def close(self) -> None:
        """Close the outputs."""
        for name, output in self._outputs.items():
            self._guard.run(f"metrics for {name}", output.close)
