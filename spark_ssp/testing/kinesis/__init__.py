"""An embedded Amazon Kinesis Data Streams, for testing pipelines on one machine. `EmbeddedKinesis`
serves HTTP for boto3 and needs the extra `local`; it is imported on first use, so that the state
(`KinesisState`) can be used without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ssp.testing.kinesis.dispatch import KinesisState
from spark_ssp.testing.kinesis.state.clock import Clock, ManualClock, SystemClock
from spark_ssp.testing.kinesis.state.errors import KinesisError
from spark_ssp.testing.kinesis.state.limits import Limits
from spark_ssp.testing.kinesis.state.page_reads import UnusualAnswers
from spark_ssp.testing.kinesis.state.service_state import Delays
from spark_ssp.testing.kinesis.state.stream import Distribution, StreamMode

if TYPE_CHECKING:
    from spark_ssp.testing.kinesis.service import EmbeddedKinesis

__all__ = [
    "Clock",
    "Delays",
    "Distribution",
    "EmbeddedKinesis",
    "KinesisError",
    "KinesisState",
    "Limits",
    "ManualClock",
    "StreamMode",
    "SystemClock",
    "UnusualAnswers",
]


def __getattr__(name: str) -> object:
    if name != "EmbeddedKinesis":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from spark_ssp.testing.kinesis.service import EmbeddedKinesis
    except ModuleNotFoundError as error:
        if error.name in ("uvicorn", "httptools"):
            raise ModuleNotFoundError(
                "The embedded Kinesis needs an HTTP server: pip install 'uvicorn>=0.35' "
                "'httptools>=0.6'"
            ) from error
        raise
    return EmbeddedKinesis
