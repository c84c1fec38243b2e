"""The messages of SubscribeToShard, decoded by botocore."""

from __future__ import annotations

import json
from typing import Any

from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.testing.kinesis.server import encode_event, encode_message, initial_response
from spark_ssp.testing.kinesis.state.stream import Record
from spark_ssp.testing.kinesis.state.subscription import ErrorEvent, RecordsEvent

NAMES = st.text(min_size=1, max_size=20)


@given(
    st.lists(st.tuples(st.dictionaries(NAMES, st.text(max_size=50)), st.binary()), max_size=4),
    st.integers(min_value=1, max_value=9),
)
def test_messages_are_decoded_however_they_are_split(
    messages: list[tuple[dict[str, str], bytes]], size: int
) -> None:
    sent = b"".join(encode_message(headers, payload) for headers, payload in messages)
    buffer = EventStreamBuffer()
    found: list[Any] = []
    for start in range(0, len(sent), size):
        buffer.add_data(sent[start : start + size])
        found += [(message.headers, message.payload) for message in buffer]
    assert found == messages


def test_the_messages_of_a_response() -> None:
    record = Record("123", "key", b"data", 1_700_000_000_001)
    buffer = EventStreamBuffer()
    buffer.add_data(initial_response())
    for event in (
        RecordsEvent(records=[record], size=7, continuation="124", millis_behind_latest=5),
        RecordsEvent(
            records=[], size=0, continuation=None, millis_behind_latest=0, child_shards=[]
        ),
        ErrorEvent(code="ResourceInUseException", message="taken over"),
    ):
        buffer.add_data(encode_event(event))
    decoded: list[Any] = list(buffer)
    initial, first, last, error = decoded
    assert initial.headers[":event-type"] == "initial-response"
    assert {
        (message.headers[":message-type"], message.headers[":event-type"])
        for message in (first, last)
    } == {("event", "SubscribeToShardEvent")}
    assert json.loads(first.payload) == {
        "Records": [
            {
                "SequenceNumber": "123",
                "ApproximateArrivalTimestamp": 1_700_000_000.001,
                "Data": "ZGF0YQ==",
                "PartitionKey": "key",
                "EncryptionType": "NONE",
            }
        ],
        "MillisBehindLatest": 5,
        "ContinuationSequenceNumber": "124",
    }
    assert json.loads(last.payload) == {"Records": [], "MillisBehindLatest": 0, "ChildShards": []}
    assert error.headers[":message-type"] == "exception"
    assert error.headers[":exception-type"] == "ResourceInUseException"
    assert json.loads(error.payload) == {"message": "taken over"}
