"""Probes shards for the last record of the next batch."""
