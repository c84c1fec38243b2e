"""Reads planned ranges in the tasks, and diagnoses partitions that make no progress."""
