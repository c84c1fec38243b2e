"""Settings of Spark's worker processes and state stores, and the check of a user's schema."""
