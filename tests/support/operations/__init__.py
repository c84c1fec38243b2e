"""Runs of the command `spark-ssp` in tests."""
