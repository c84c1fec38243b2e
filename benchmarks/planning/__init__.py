"""Benchmarks of planning, without services."""
