"""Enhanced fan-out: registered consumers, and the shards that are pushed to them."""
