"""Consumers of single partitions, and the pool that keeps them between tasks."""
