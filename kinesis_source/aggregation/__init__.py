"""Splits KPL aggregates into user records."""
