"""Fetches metadata and offsets, and decides which ranges a batch reads."""
