"""Benchmarks of leases."""
