"""Spark's own Kafka connector, which PySpark comes without: `format("kafka")`. The connector and
its token provider are of older versions than PySpark is, and run on it."""

from __future__ import annotations

import os
from typing import Final

from spark_ssp.testing.kafka.jars import Bundle, fetch
from tests.support.servers.cache import checksums

_BUNDLE: Final = Bundle(
    name="spark-kafka",
    version="4.2.0",
    modules=checksums("spark-kafka-4.2.0.xml"),
    checksums=checksums("spark-kafka-4.2.0.sha256"),
)


def install() -> str:
    """The class path of its jars, for `spark.driver.extraClassPath`."""
    return os.pathsep.join(str(jar) for jar in sorted(fetch(_BUNDLE).glob("*.jar")))
