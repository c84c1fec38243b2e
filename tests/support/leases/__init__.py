"""Lease rows, stores and agents for tests."""
