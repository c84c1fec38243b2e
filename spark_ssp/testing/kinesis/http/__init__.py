"""The HTTP endpoints of the embedded services."""
