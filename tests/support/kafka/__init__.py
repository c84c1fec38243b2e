"""Topics, planners and queries of the Kafka source for tests."""
