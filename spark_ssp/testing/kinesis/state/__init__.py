"""Streams, shards and records held in memory."""
