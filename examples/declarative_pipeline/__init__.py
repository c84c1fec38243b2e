"""A Spark Declarative Pipeline from Kinesis into a table and a Kafka topic."""
