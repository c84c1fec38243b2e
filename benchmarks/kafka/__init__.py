"""Benchmarks of the Kafka source."""
