"""Parses and validates the options of `kafka-ssp`."""
