"""Kinesis and Kafka on this machine, for tests and first steps; `spark_ssp` exports their API."""
