"""Sends the time of AT_TIMESTAMP to the millisecond with any botocore.

Before September 2026 botocore cuts times to whole seconds in requests, which would move the point
at which a query starts by up to a second. The service accepts fractions (API reference of
GetShardIterator).
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from spark_ssp.kinesis_source.client.responses import Events

_JSON: Final = "application/x-amz-json"
_WANTED: Final = "spark_ssp_timestamp"
"""The key of the time in the context of a request, which botocore passes to all its handlers."""


def register_exact_times(events: Events) -> None:
    """Register the handlers that restore the milliseconds of AT_TIMESTAMP."""
    events.register("before-parameter-build.kinesis.GetShardIterator", _remember)
    events.register("before-call.kinesis.GetShardIterator", _restore)


def _remember(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
    if isinstance(params.get("Timestamp"), datetime):
        context[_WANTED] = params["Timestamp"].timestamp()


def _restore(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
    """Replace the time in the body of a request, before it is signed."""
    wanted = context.get(_WANTED)
    if wanted is None or not str(params["headers"].get("Content-Type")).startswith(_JSON):
        return
    body = json.loads(params["body"])
    if body["Timestamp"] != wanted:
        params["body"] = json.dumps(body | {"Timestamp": wanted}).encode()
