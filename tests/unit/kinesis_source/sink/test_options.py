"""Options of the Kinesis sink."""

from __future__ import annotations

import logging

import pytest

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from spark_ssp.kinesis_source.sink.options import SinkOptions, parse_sink_options

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"


def test_options_and_their_defaults() -> None:
    assert parse_sink_options({}) == SinkOptions(connection=ConnectionOptions())
    given = {
        "streamARN": ARN,
        "ORDERING": "Key",
        "kinesis.sink.recordTtl": "30000",
        "maxRequestsInFlight": "3",
        "roleArn": "arn:aws:iam::123456789012:role/writer",
        # Spark passes its own options as well.
        "path": "",
        "queryName": "copy",
        "checkpointLocation": "/checkpoint",
    }
    assert parse_sink_options(given) == SinkOptions(
        stream=StreamRef(name=StreamName("orders"), arn=ARN),
        is_ordered=True,
        delivery_timeout_ms=30_000,
        max_requests_in_flight=3,
        connection=ConnectionOptions(
            region="eu-west-1", role_arn="arn:aws:iam::123456789012:role/writer"
        ),
    )


def test_an_aggregate_may_contain_the_identity_of_its_rows() -> None:
    given = {"aggregation": "true", "includeRepeatKeys": "true", "batchWriteId": "0f-Q:12"}
    assert parse_sink_options(given) == SinkOptions(
        is_aggregating=True,
        include_repeat_keys=True,
        batch_write=("0f-Q", 12),
        connection=ConnectionOptions(),
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"streamName": "a,b"}, r"streamName: found 2 streams"),
        ({"streamName": "orders", "streamARN": ARN}, r"streamName together with streamARN"),
        ({"streamARN": f"{ARN},{ARN}s"}, r"streamARN: found 2 streams"),
        ({"ordering": "shard"}, r"ordering: found 'shard'; expected none or key"),
        ({"orderng": "key"}, r"did you mean ordering\?"),
        ({"deliveryTimeout": "1ms"}, r"deliveryTimeout"),
        ({"kinesis.sink.proxyPort": "1"}, r"HTTPS_PROXY"),
        ({"kinesis.sink.other": "1"}, r"kinesis\.sink\.other: found an unknown option"),
        ({"kinesis.sink.aggregationEnabled": "true", "ordering": "key"}, "together with ordering"),
        ({"includeRepeatKeys": "true"}, "includeRepeatKeys: found true without aggregation=true"),
        ({"includeRepeatHeaders": "true"}, r"did you mean includeRepeatKeys\?"),
        ({"batchWriteId": "q:1"}, "set includeRepeatKeys=true"),
        ({"awsSecretAccessKey": "s3cret"}, r"awsSecretAccessKey without awsAccessKeyId"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, str], expected: str) -> None:
    with pytest.raises(InvalidOptionsError, match=expected) as caught:
        parse_sink_options(given)
    assert "s3cret" not in str(caught.value)


def test_options_without_effect_are_named(caplog: pytest.LogCaptureFixture) -> None:
    given = {"startingPosition": "latest", "kinesis.sink.flushWaitTimeMs": "1", "mine": "1"}
    with caplog.at_level(logging.WARNING):
        parse_sink_options(given)
    (effectless, unknown) = (record.getMessage() for record in caplog.records)
    assert "kinesis.sink.flushWaitTimeMs (requests are sent as soon as" in effectless
    assert "startingPosition (it is an option of the source)" in effectless
    assert "'mine'" in unknown
