"""Checks of a machine and of the access to services. Never writes to a service."""
