"""The state of a running query at one moment, as values."""
