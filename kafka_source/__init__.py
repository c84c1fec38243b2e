"""The Kafka source and sink: the driver plans what a batch holds, tasks read it, or write it."""
