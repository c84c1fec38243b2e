"""In-memory implementations of the services."""
