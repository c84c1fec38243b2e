"""Calls of the embedded Kinesis without HTTP, on a stream `orders`."""

from __future__ import annotations

from typing import Any, Final

from spark_ssp.testing.kinesis import KinesisError, KinesisState
from spark_ssp.testing.kinesis.state.errors import NoAnswer
from spark_ssp.testing.kinesis.state.page_reads import RecordsPage

FIRST: Final = "shardId-000000000000"
SECOND: Final = "shardId-000000000001"
ORDERS: Final = {"StreamName": "orders"}


def answered(state: KinesisState, operation: str, **body: Any) -> dict[str, Any]:
    """Return the JSON that a call is answered with."""
    answer = state.call(operation, body)
    assert isinstance(answer, dict)
    return answer


def outcome(state: KinesisState, operation: str, body: dict[str, Any]) -> str:
    """Return "ok", or the error code, or "dropped"."""
    try:
        state.call(operation, body)
    except KinesisError as error:
        return error.code
    except NoAnswer:
        return "dropped"
    return "ok"


def iterator(state: KinesisState, kind: str = "TRIM_HORIZON", **body: Any) -> str:
    """Return an iterator of the first shard, unless `body` has another `ShardId`."""
    request = {**ORDERS, "ShardId": FIRST, "ShardIteratorType": kind} | body
    return str(answered(state, "GetShardIterator", **request)["ShardIterator"])


def read(state: KinesisState, token: str, limit: int = 10_000) -> RecordsPage:
    """Return the page at an iterator."""
    page = state.call("GetRecords", {"ShardIterator": token, "Limit": limit})
    assert isinstance(page, RecordsPage)
    return page


def texts(page: RecordsPage) -> str:
    """Return the data of a page's records as one text."""
    return b"".join(record.data for record in page.records).decode()
