"""Drops records that the sink wrote more than once."""
