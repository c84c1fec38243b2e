"""An embedded Amazon Kinesis Data Streams, for testing pipelines on one machine."""

from __future__ import annotations

from embedded_kinesis.clock import Clock, ManualClock, SystemClock
from embedded_kinesis.errors import KinesisError
from embedded_kinesis.limits import Limits
from embedded_kinesis.state import Delays, KinesisState

__all__ = [
    "Clock",
    "Delays",
    "KinesisError",
    "KinesisState",
    "Limits",
    "ManualClock",
    "SystemClock",
]
