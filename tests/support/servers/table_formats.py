"""Delta and Iceberg for Spark. Neither has been published for PySpark 4.3: these are for 4.1."""

from __future__ import annotations

import os
from typing import Final

from spark_ssp.testing.kafka.jars import Artifact, Bundle, fetch
from tests.support.servers.cache import checksums

DELTA: Final = Bundle(
    name="delta",
    version="4.4.0",
    modules=checksums("delta-4.4.0.xml"),
    checksums=checksums("delta-4.4.0.sha256"),
)
ICEBERG: Final = Artifact(
    organisation="org.apache.iceberg",
    name="iceberg-spark-runtime-4.1_2.13",
    version="1.12.0",
    checksums=checksums("iceberg-1.12.0.sha256"),
)


def class_path(of: Artifact | Bundle) -> str:
    """Of its jars, for `spark.driver.extraClassPath`."""
    return os.pathsep.join(str(jar) for jar in sorted(fetch(of).glob("*.jar")))
