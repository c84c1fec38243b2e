"""The mode of `make long` in which every query of the embedded service is pushed to in each batch:
`SSP_CONSUMER_MODE=efo`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from spark_ssp.testing.kinesis import EmbeddedKinesis
from spark_ssp.testing.kinesis.state import subscription

_ROOT: Final = Path(__file__).resolve().parents[3]

FAN_OUT_EVERYWHERE: Final = os.environ.get("SSP_CONSUMER_MODE") == "efo"
"""True if all queries of the embedded service use enhanced fan-out, in each batch."""

FAN_OUT_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {"consumerMode": "efo", "consumerName": "tests"} if FAN_OUT_EVERYWHERE else {}
)
"""Of each query."""

EVERY_PROCESS: Final = _ROOT / "tests" / "support" / "every_process"
"""A folder for the module path, whose `sitecustomize` sets up the mode."""


def python_path(*folders: Path) -> dict[str, str]:
    """Return the variable PYTHONPATH of a Spark process that imports from `folders`."""
    parts = (*folders, EVERY_PROCESS) if FAN_OUT_EVERYWHERE else folders
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(map(str, parts)))}


@contextmanager
def pushed_everywhere(kinesis: EmbeddedKinesis) -> Iterator[None]:
    """Let consumers subscribe again at once. At the end, check that queries that have read, which
    takes a probe and another call, have subscribed."""
    if not FAN_OUT_EVERYWHERE:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subscription, "TAKEOVER_MS", 0)
        yield
    calls = kinesis.calls
    assert calls.count("SubscribeToShard") or calls.count("GetRecords") < 2, calls.by_operation()
