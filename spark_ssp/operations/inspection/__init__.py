"""Reads checkpoints, lease tables, streams and topics; returns frozen values. Never writes."""
