"""Shards, probes and options of the Kinesis source for tests."""
