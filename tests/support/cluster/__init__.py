"""Real clusters for tests: standalone Spark, packed environments, separate networks."""
