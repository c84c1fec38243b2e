"""The Kafka source and sink: the driver plans the ranges of a batch, tasks read it, or write it."""

from __future__ import annotations

if __name__ != "spark_ssp.kafka_source":
    raise ImportError("kafka_source has one import name: spark_ssp.kafka_source")
