"""Benchmarks: each module is one command, `python -m benchmarks.<name>`."""
