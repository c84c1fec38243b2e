"""Options of the Kafka sink, and a producer's properties among them."""

from __future__ import annotations

import logging
import pickle
from itertools import combinations

import pytest

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.common.options.shared import batch_write_in_stream_error
from spark_ssp.kafka_source.options.property_names import COMBINED, PRODUCER, SECRETS
from spark_ssp.kafka_source.options.translation import read_properties
from spark_ssp.kafka_source.sink.options import SinkOptions
from spark_ssp.kafka_source.sink.parse import parse_sink_options
from spark_ssp.kafka_source.sink.table_sink import marker_topic

BROKERS = {"kafka.bootstrap.servers": "h:1"}


def _parse(**options: str) -> SinkOptions:
    return parse_sink_options(
        BROKERS | {name.replace("_", "."): value for name, value in options.items()}
    )


def _refusal(options: dict[str, str]) -> InvalidOptionsError:
    with pytest.raises(InvalidOptionsError) as caught:
        parse_sink_options(options)
    return caught.value


def test_the_defaults_are_those_of_java() -> None:
    options = _parse(topic=" orders ")
    assert options.topic == "orders"
    assert options.include_repeat_headers is False
    assert options.client.config() == {
        "acks": "all",
        "bootstrap.servers": "h:1",
        "delivery.timeout.ms": "120000",
        "enable.idempotence": "true",
        "message.max.bytes": "1048576",
        "partitioner": "murmur2_random",
        "queue.buffering.max.kbytes": "32768",
        "reconnect.backoff.max.ms": "1000",
        "socket.connection.setup.timeout.ms": "10000",
        # Not Java's: a task may take longer than a minute.
        "transaction.timeout.ms": "600000",
    }
    assert pickle.loads(pickle.dumps(options)) == options
    assert _parse().topic is None


def test_names_of_java_are_translated() -> None:
    config = _parse(
        kafka_max_request_size="2000000",
        kafka_buffer_memory="33554433",
        kafka_acks="-1",
        kafka_request_timeout_ms="7",
        kafka_linger_ms="8",
        kafka_enable_idempotence="TRUE",
    ).client.config()
    assert config["message.max.bytes"] == "2000000"
    assert config["queue.buffering.max.kbytes"] == "32769"
    assert config["acks"] == "all"
    assert config["request.timeout.ms"] == "7"
    assert config["linger.ms"] == "8"
    assert config["enable.idempotence"] == "true"


def test_all_problems_are_reported_at_once() -> None:
    error = _refusal(
        {
            "topic": "my orders",
            "includeRepeatHeaders": "perhaps",
            "includeRepeatHeader": "true",
            "kafka.acks": "1",
            "kafka.key.serializer": "org.example.Own",
            "kafka.transactional.id": "t",
            "kafka.partitioner.class": "org.example.Own",
            "kafka.delivery.timeout.ms": "0",
            "kafka.enable.idempotence": "maybe",
            "kafka.lingerms": "1",
            "kafka.transaction.timeout.ms": "15m",
        }
    )
    assert sorted(problem.option for problem in error.problems) == [
        "includeRepeatHeaders",
        "includerepeatheader",
        "kafka.acks",
        "kafka.bootstrap.servers",
        "kafka.delivery.timeout.ms",
        "kafka.enable.idempotence",
        "kafka.key.serializer",
        "kafka.lingerms",
        "kafka.partitioner.class",
        "kafka.transaction.timeout.ms",
        "kafka.transactional.id",
        "topic",
    ]
    for partitioner in ("random", "consistent_random"):
        (problem,) = _refusal(
            BROKERS | {"kafka.partitioner": partitioner, "includeRepeatHeaders": "true"}
        ).problems
        assert problem.option == "kafka.partitioner"
        assert problem.found.startswith(partitioner)
    assert _parse(kafka_partitioner="random").client.config()["partitioner"] == "random"


def test_a_batch_write_may_be_one_of_a_query() -> None:
    options = _parse(includeRepeatHeaders="true", batchWriteId="0f-Q:12")
    assert options.batch_write == ("0f-Q", 12)
    assert _parse(includeRepeatHeaders="true").batch_write is None
    for wrong in ({"batchWriteId": "q:1"}, {"batchWriteId": "q", "includeRepeatHeaders": "true"}):
        (problem,) = _refusal(BROKERS | wrong).problems
        assert problem.option == "batchWriteId"
    with pytest.raises(InvalidOptionsError, match="batchWriteId"):
        raise batch_write_in_stream_error("kafka-ssp")


def test_exactly_once_needs_a_place_for_its_markers_and_nothing_that_contradicts_it() -> None:
    options = _parse(topic="orders", deliveryGuarantee="Exactly-Once", transactionName="orders.v2")
    assert options.is_exactly_once
    assert options.transaction_name == "orders.v2"
    assert marker_topic(options) == "orders"
    assert marker_topic(_parse(markerTopic="m", deliveryGuarantee="exactly-once")) == "m"
    assert not _parse(topic="orders").is_exactly_once
    once = {"deliveryGuarantee": "exactly-once"}
    for wrong, named in (
        (once, "markerTopic"),
        ({"deliveryGuarantee": "at-most-once"}, "deliveryGuarantee"),
        ({"transactionName": "n"}, "transactionName"),
        ({"markerTopic": "m"}, "markerTopic"),
        ({"exactlyOnceFrom": "3"}, "exactlyOnceFrom"),
        ({**once, "topic": "t", "transactionName": "a/b"}, "transactionName"),
        ({**once, "topic": "t", "markerTopic": "m"}, "markerTopic"),
        ({**once, "topic": "my orders"}, "topic"),
        ({**once, "markerTopic": "my markers"}, "markerTopic"),
        ({**once, "topic": "t", "includeRepeatHeaders": "true"}, "includeRepeatHeaders"),
        ({**once, "topic": "t", "kafka.enable.idempotence": "false"}, "kafka.enable.idempotence"),
        ({**once, "topic": "t", "kafka.retries": "0"}, "kafka.retries"),
        ({**once, "topic": "t", "kafka.max.in.flight": "6"}, "kafka.max.in.flight"),
    ):
        (problem,) = _refusal(BROKERS | wrong).problems
        assert problem.option == named
    no_idempotence = {"kafka.retries": "0", "kafka.enable.idempotence": "false"}
    every = _refusal(BROKERS | once | {"topic": "t"} | no_idempotence)
    assert {problem.option for problem in every.problems} == no_idempotence.keys()
    written = _parse(topic="t", deliveryGuarantee="exactly-once", batchWriteId="q:4")
    assert written.batch_write == ("q", 4)


def test_what_has_no_effect_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        _parse(
            topic="orders",
            checkpointLocation="/somewhere",
            includeHeaders="true",
            subscribe="orders",
            path="/p",
            kafka_group_id="g",
            kafka_auto_offset_reset="earliest",
            kafka_max_block_ms="1",
            kafka_enable_idempotence="false",
        )
    told = "\n".join(record.getMessage() for record in caplog.records)
    for name in ("includeHeaders", "subscribe", "path", "kafka.group.id", "kafka.max.block.ms"):
        assert f"option {name} " in told
    assert "kafka.auto.offset.reset" in told
    assert "kafka.enable.idempotence is false" in told
    assert "checkpoint" not in told
    assert "groupIdPrefix" not in told


def test_a_producers_name_stands_in_one_list() -> None:
    lists = [
        PRODUCER.supported,
        set(PRODUCER.aliases),
        COMBINED,
        set(PRODUCER.refused),
        set(PRODUCER.without_effect),
    ]
    assert [one & other for one, other in combinations(lists, 2) if one & other] == []
    assert set(PRODUCER.aliases.values()) | SECRETS | set(PRODUCER.defaults) <= PRODUCER.supported


@pytest.mark.parametrize("name", sorted(PRODUCER.refused))
def test_a_refused_name_is_refused_with_its_advice(name: str) -> None:
    (problem,) = read_properties({f"kafka.{name}": "s3cr3t"}, PRODUCER).problems
    assert problem.option == f"kafka.{name}"
    assert PRODUCER.refused[name] in problem.next_step
    assert "s3cr3t" not in str(problem)
