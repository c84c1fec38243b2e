"""Benchmarks of the Kinesis source."""
