"""Stores for the assignment of partitions to tasks, outside Spark checkpoints."""
