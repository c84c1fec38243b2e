"""Runs in each Python process that has this folder on its path, by its name: pushes ranges of any
size, as often as there are batches."""

from __future__ import annotations

from typing import Any

import kinesis_source.fan_out.push_choice

_choice: Any = kinesis_source.fan_out.push_choice
_choice.RESUBSCRIBE_AFTER_S = 0.0
_choice.MIN_PUSHED_BYTES = 0
_choice.MIN_PUSHED_RECORDS = 0
