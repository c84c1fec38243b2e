"""Requests, errors, quotas, faults and the clock of the embedded service."""
