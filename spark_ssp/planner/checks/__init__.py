"""Validates a pipeline before it is planned."""
