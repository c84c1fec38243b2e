"""The Kafka source: groundwork. Options, offsets and planning, all pure; no query uses it yet."""
