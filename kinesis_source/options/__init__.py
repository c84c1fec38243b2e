"""Parses and validates the options of `kinesis-ssp`."""
