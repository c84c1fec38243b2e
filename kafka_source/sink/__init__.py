"""Writes rows to Kafka."""
