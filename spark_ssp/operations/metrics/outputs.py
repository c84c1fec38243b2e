"""The protocol of the outputs of metrics, and the error of a wrong argument."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.operations.metrics.catalogue import Metric
from spark_ssp.operations.metrics.readings import QueryStates
from spark_ssp.operations.progress import FailureGuard
from spark_ssp.operations.snapshot import QuerySnapshot


class Output:
    """A destination of metrics. Most are read by others, with the values of `QueryStates`."""

    def publish(self, snapshot: QuerySnapshot, counts: Mapping[Metric, int]) -> None:
        """Publish a query's state after a trigger. `counts`: its counters, since its start."""

    def close(self) -> None:
        """Free its resources."""


def invalid_argument(
    name: str, *, found: str, expected: str, next_step: str = "correct the argument"
) -> InvalidOptionsError:
    """Return the error for an argument of `publish_metrics`."""
    problem = OptionProblem(option=name, found=found, expected=expected, next_step=next_step)
    return InvalidOptionsError("publish_metrics", [problem])


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
