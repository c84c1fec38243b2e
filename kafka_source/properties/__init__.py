"""Translates the Java client's `kafka.*` properties into those of librdkafka."""
