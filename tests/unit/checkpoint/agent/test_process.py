"""The agent's process: outcomes of many writes handled together, the rest at once; its clock."""

from __future__ import annotations

import queue
import sys
import time
from typing import Any, cast

import pytest

from spark_ssp.checkpoint.agent import process
from spark_ssp.checkpoint.agent.event_loop import (
    Event,
    LeaseAgent,
    MetricsWriteCompleted,
    ReportReceived,
    WritesCompleted,
)
from spark_ssp.checkpoint.agent.process import Inbox, _handle
from spark_ssp.checkpoint.coordination.protocol import Report

# Only their kinds matter here.
OUTCOME = WritesCompleted(results=((cast("Any", None), cast("Any", None)),))
REPORT = ReportReceived(report=Report())
MANY = 1000


class Noting:
    """An agent that notes what it is told."""

    def __init__(self, writes_in_flight: int) -> None:
        self.writes_in_flight = writes_in_flight
        self.told: list[Event] = []

    def handle(self, event: Event) -> None:
        self.told.append(event)


class Script:
    """An inbox that gives these, and notes how long each was waited for."""

    def __init__(self, *events: Event) -> None:
        self._events = list(events)
        self.waits: list[float] = []

    def get(self, *, timeout: float) -> Event:
        self.waits.append(timeout)
        if not self._events:
            raise queue.Empty
        return self._events.pop(0)


def waits(writes_in_flight: int, *events: Event, timeout_s: float = 5.0) -> list[float]:
    """How long each event and the one after them was waited for. All are told, in order."""
    agent, inbox = Noting(writes_in_flight), Script(*events)
    _handle(cast("LeaseAgent", agent), cast("Inbox", inbox), timeout_s)
    assert agent.told == list(events)
    return inbox.waits


def test_outcomes_of_many_writes_are_gathered_for_a_while_in_all() -> None:
    first, *others = waits(MANY, OUTCOME, OUTCOME, OUTCOME)
    assert first == 5.0
    assert len(others) == 3
    assert others[0] == pytest.approx(0.05)
    assert others[0] >= others[1] >= others[2] >= 0


def test_what_else_happens_waits_for_nothing() -> None:
    for event in (REPORT, MetricsWriteCompleted()):
        assert waits(MANY, event)[1:] == [0.0]
        assert waits(MANY, OUTCOME, event)[2:] == [0.0]


def test_few_writes_are_not_waited_for() -> None:
    assert waits(16, OUTCOME, OUTCOME) == [5.0, 0.0, 0.0]


def test_without_work_the_wait_is_the_whole_timeout() -> None:
    assert waits(MANY, timeout_s=0.25) == [0.25]


def test_the_clock_goes_on_while_the_machine_is_suspended() -> None:
    """On Linux; other systems have no such clock."""
    expected = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC
    assert expected == process.CLOCK


def test_it_shows_milliseconds_and_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.clock_gettime_ns(process.CLOCK)
    shown = [process.monotonic_ms() for _ in range(100)]
    end = time.clock_gettime_ns(process.CLOCK)
    assert begin // 1_000_000 <= shown[0]
    assert shown[-1] <= end // 1_000_000
    assert shown == sorted(shown)
    times = {process.CLOCK: 5_999_999}
    monkeypatch.setattr(time, "clock_gettime_ns", times.__getitem__)
    assert process.monotonic_ms() == 5
