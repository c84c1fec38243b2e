"""Removes duplicates of records that the sink wrote more than once."""
