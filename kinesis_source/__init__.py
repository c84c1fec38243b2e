"""The Spark source for Amazon Kinesis: the driver plans what a batch holds, tasks read it."""
