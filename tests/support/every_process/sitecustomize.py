"""Runs in each Python process that has this folder on its path, by its name. `SSP_IMPORTS` is a
file to record imports in: see `watched_imports.py`. `SSP_CLOCK_SHIFT_S` moves `time.time` by
seconds, and creates the file `SSP_CLOCK_SHIFTED`. With `SSP_CONSUMER_MODE=efo` ranges of any size
are pushed, as often as there are batches: see `fan_out_mode.py`."""

from __future__ import annotations

import os
import sys
import time
from typing import Any


class _Watch:
    """Finds no module; records imports of pandas in a file."""

    def __init__(self, file: str) -> None:
        self._file = file

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            self.record("pandas")

    def record(self, what: str) -> None:
        with open(self._file, "a", encoding="utf-8") as imports:
            imports.write(f"{what} {' '.join(sys.orig_argv)}\n")


def _watch_imports(file: str) -> None:
    watch = _Watch(file)
    finders: list[Any] = sys.meta_path
    finders.insert(0, watch)
    watch.record("started")


def _push_everything() -> None:
    import spark_ssp.kinesis_source.reading.fan_out

    choice: Any = spark_ssp.kinesis_source.reading.fan_out
    choice.RESUBSCRIBE_AFTER_S = 0.0
    choice.MIN_PUSHED_BYTES = 0
    choice.MIN_PUSHED_RECORDS = 0


# Spark pickles functions of the planner for its workers: these are found by their names.
_NOW, _NOW_NS = time.time, time.time_ns
_SHIFT_S = int(os.environ.get("SSP_CLOCK_SHIFT_S", "0"))


def shifted_time() -> float:
    return _NOW() + _SHIFT_S


def shifted_time_ns() -> int:
    return _NOW_NS() + _SHIFT_S * 1_000_000_000


if _SHIFT_S:
    clock: Any = time
    clock.time, clock.time_ns = shifted_time, shifted_time_ns
    with open(os.environ["SSP_CLOCK_SHIFTED"], "w"):
        pass
if "SSP_IMPORTS" in os.environ:
    _watch_imports(os.environ["SSP_IMPORTS"])
if os.environ.get("SSP_CONSUMER_MODE") == "efo":
    _push_everything()
