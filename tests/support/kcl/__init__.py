"""Kinesis Client Library workers and KPL aggregates."""
