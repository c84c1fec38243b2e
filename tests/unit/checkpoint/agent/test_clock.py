"""The clock of an agent's process."""

from __future__ import annotations

import sys
import time

import pytest

from spark_ssp.checkpoint.agent import process


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
