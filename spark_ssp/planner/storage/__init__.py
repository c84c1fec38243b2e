"""Stores plans and compares them with earlier ones."""
