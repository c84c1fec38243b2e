"""`kafka-consumer-groups`, Kafka's own command-line tool."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from typing import Final, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from spark_ssp.testing.kafka import broker
from spark_ssp.testing.kafka.jars import Bundle, fetch, java
from tests.support.servers.cache import checksums
from tests.support.servers.process import FIRST_COMPILER_ALONE

_BUNDLE: Final = Bundle(
    name="kafka-tools",
    version="4.3.1",
    modules=checksums("kafka-tools-4.3.1.xml"),
    checksums=checksums("kafka-tools-4.3.1.sha256"),
)
_GROUPS: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_PATIENCE_S: Final = 120


class GroupLine(NamedTuple):
    """A line of `--describe`: of one partition."""

    current_offset: int
    log_end_offset: int
    lag: int


def install() -> str:
    """The class path of the tools."""
    return os.pathsep.join(f"{folder}{os.sep}*" for folder in (broker.install(), fetch(_BUNDLE)))


def describe_group(bootstrap_servers: str, group: str) -> dict[tuple[str, int], GroupLine]:
    """The lines of `kafka-consumer-groups --describe` by topic and partition; empty if the tool
    knows no such group."""
    command = [java(), FIRST_COMPILER_ALONE, "-Xmx128m", "-classpath", install(), _GROUPS]
    command += ["--bootstrap-server", bootstrap_servers, "--describe", "--group", group]
    run = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    lines = [line.split() for line in run.stdout.splitlines() if line.split()]
    header = next((line for line in lines if line[0] == "GROUP"), None)
    if header is None:
        return {}
    cells = [dict(zip(header, line, strict=False)) for line in lines if line[0] == group]
    return {
        (cell["TOPIC"], int(cell["PARTITION"])): GroupLine(
            int(cell["CURRENT-OFFSET"]), int(cell["LOG-END-OFFSET"]), int(cell["LAG"])
        )
        for cell in cells
    }


def committed_offsets(
    bootstrap_servers: str, group: str, partitions: Collection[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """The committed offsets of these partitions, faster than by the tool."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": group}
    consumer = Consumer(settings)
    try:
        places = [TopicPartition(*place) for place in partitions]
        return {(one.topic, one.partition): one.offset for one in consumer.committed(places, 60)}
    finally:
        consumer.close()
