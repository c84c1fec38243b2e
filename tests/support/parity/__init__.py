"""Comparison with Spark's own Kafka source."""
