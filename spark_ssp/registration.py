"""Registers the formats with a session, for platforms on which Spark does not look for them."""

from __future__ import annotations

from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import pyspark_kafka_ssp
import pyspark_kinesis_ssp

_FOUND_BY_SPARK: Final = "DATA_SOURCE_ALREADY_EXISTS"


def register(spark: SparkSession) -> None:
    """Register `kinesis-ssp` and `kafka-ssp` with the session, unless Spark has found them.

    Apache Spark finds both by the names of their modules. Platforms that document an explicit
    registration, such as Databricks, may not. Spark 4.0 refuses to register a format that it has
    found; newer versions log a warning.
    """
    for source in (pyspark_kinesis_ssp.DefaultSource, pyspark_kafka_ssp.DefaultSource):
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            if error.getCondition() != _FOUND_BY_SPARK:
                raise
