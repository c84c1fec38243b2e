"""The Kafka source and sink: the driver plans the ranges of a batch, tasks read it, or write it."""
