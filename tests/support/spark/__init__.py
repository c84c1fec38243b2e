"""Real Spark drivers and queries for tests."""
