"""The live page: the tasks of running queries as lanes over time, and the shards that they read."""
