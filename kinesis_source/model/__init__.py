"""Values that the driver and the tasks exchange: shards, positions, ranges and offsets."""
