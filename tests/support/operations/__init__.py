"""Runs of the command `spark-ssp`, and invented progress reports, for tests."""
