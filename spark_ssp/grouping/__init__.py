"""Identifiers, and the assignment of partitions to tasks and shards to slots. No I/O, no clock."""
