"""Metrics for OpenTelemetry, by its API only: the user's program brings an SDK and an exporter. The
names are those of Prometheus without the unit and `_total`, which exporters to Prometheus append.

The API cannot remove an instrument, and an SDK ignores the callback of one that is created a second
time. So a meter provider gets the instruments once, and each output adds its values to them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from opentelemetry.environment_variables import OTEL_PYTHON_METER_PROVIDER
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider

from spark_ssp.common import __version__
from spark_ssp.operations.metrics.catalogue import METRICS, RUNNING, Kind, Metric
from spark_ssp.operations.metrics.readings import Output, QueryStates, Reading

Callback = Callable[[CallbackOptions], Iterable[Observation]]


class Instruments:
    """The observable gauges and counters of one meter provider, which an SDK reads at its own
    interval."""

    def __init__(self, provider: MeterProvider) -> None:
        self._lock = threading.Lock()
        self._states: list[QueryStates] = []
        self._collected: dict[Metric, list[Observation]] = {}
        """The values of the present collection that were not asked for yet."""
        meter = provider.get_meter("spark_ssp", __version__)
        for metric in METRICS:
            create = (
                meter.create_observable_counter
                if metric.kind is Kind.COUNTER
                else meter.create_observable_gauge
            )
            observe: Callback = partial(self._observe, metric)
            create(metric.base_name, [observe], unit=metric.unit, description=metric.help)

    def add(self, states: QueryStates) -> None:
        """Add the values of a session."""
        with self._lock:
            self._states.append(states)
            self._collected.clear()

    def remove(self, states: QueryStates) -> None:
        """Remove the values of a session."""
        with self._lock:
            self._states.remove(states)
            self._collected.clear()

    def _observe(self, metric: Metric, _: CallbackOptions) -> list[Observation]:
        """Return the values of one metric. An SDK asks for each once in a collection, so the values
        of all are read when one is asked for again."""
        with self._lock:
            if metric not in self._collected:
                self._collected = {one: [] for one in METRICS}
                for found, labels, value in self._readings():
                    attributes = dict(zip(found.labels, labels, strict=True))
                    self._collected[found].append(Observation(value, attributes))
            return self._collected.pop(metric)

    def _readings(self) -> list[Reading]:
        """Return the values of all sessions. An SDK keeps the last one of each series, so the
        queries that run are added up here."""
        found = [reading for states in self._states for reading in states.readings()]
        running = sum(value for metric, _, value in found if metric is RUNNING)
        others = [reading for reading in found if reading.metric is not RUNNING]
        return [Reading(RUNNING, (), running), *others] if found else []


_lock = threading.Lock()
_instruments: Final[WeakKeyDictionary[MeterProvider, Instruments]] = WeakKeyDictionary()
_global: Instruments | None = None
"""Those of the global provider."""


def _instruments_of(provider: MeterProvider | None) -> Instruments:
    """Return the instruments of a provider. The global one counts as one provider: until the
    program sets it, the API returns a proxy, whose instruments it then creates in the real one."""
    global _global
    # If the environment names the global one, the API creates it when it is asked for it, and
    # returns no proxy.
    is_global = provider is None or (
        OTEL_PYTHON_METER_PROVIDER not in os.environ and provider is get_meter_provider()
    )
    chosen = provider or get_meter_provider()
    with _lock:
        found = _instruments.get(chosen) or (_global if is_global else None)
        found = _instruments[chosen] = found or Instruments(chosen)
        if is_global:
            _global = found
        return found


class OpenTelemetryOutput(Output):
    """The values of a session, in the instruments of a meter provider."""

    def __init__(self, states: QueryStates, provider: MeterProvider | None) -> None:
        """`provider`: by default, the global one."""
        self._instruments = _instruments_of(provider)
        self._states: QueryStates | None = states
        self._instruments.add(states)

    def close(self) -> None:
        """Return no further values. Has no effect the second time."""
        states, self._states = self._states, None
        if states is not None:
            self._instruments.remove(states)
