"""Simulated accounts, queries and workers under a manual clock, and their judges."""
