"""Streams, shards and records held in memory; requests, errors, quotas, faults and the clock."""
