"""Values that the driver and the tasks exchange: topics, ranges and offsets."""
