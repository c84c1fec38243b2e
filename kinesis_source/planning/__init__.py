"""Decides which shards a batch reads and how it is divided into input partitions."""
