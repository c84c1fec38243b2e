"""The Spark source for Amazon Kinesis: the driver plans the batches, tasks read them."""

from __future__ import annotations

if __name__ != "spark_ssp.kinesis_source":
    raise ImportError("kinesis_source has one import name: spark_ssp.kinesis_source")
