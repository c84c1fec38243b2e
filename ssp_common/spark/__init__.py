"""Settings of Spark's worker processes and state stores."""
